//! What a call costs through gateway and sidecar, beside the same call through the bare pair, and directly.
//!
//! All three ways begin at one client in a pod and end at one probe: gateway and sidecar, front and back, or nothing between.
//! A round measures each way one after the other, first with one connection for the time of a call, then with many for the
//! rate and the CPU time; the next round goes the other way round.

use crate::pods::{Load, PORT, Pair, address_of, gateway, only_pod};
use crate::progress;
use crate::report::{Measure, Report};
use crate::stats::{median, order, ratio_of_rounds};
use crate::usage::Processes;
use bench_pair::load::{Answer, NUMBER, Post, Ran, Run};
use berth_e2e::{POOL, Probe, TestNamespace, mcp_server, session};
use k8s_openapi::api::core::v1::Service;
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// Connections where the rate is measured.
const CONNECTIONS: u16 = 16;
/// Bytes of the message that a call carries there and back.
const MESSAGE_BYTES: usize = 1024;
/// Length of one measurement.
const SLICE: Duration = Duration::from_secs(1);
/// Measurements of a round: three ways, time and rate.
const SLICES: u32 = 6;
/// Fewest rounds.
const MIN_ROUNDS: usize = 3;
/// Tokens of a test live for ten minutes.
const TOKEN_LIFE: Duration = Duration::from_mins(5);
/// The ways, in the order of [`Way`]s.
const HOP: usize = 0;
const PAIR: usize = 1;
const DIRECT: usize = 2;

/// One way from the client to the probe.
struct Way {
    to: SocketAddr,
    path: String,
    /// Headers that name its MCP session, and the caller where there is one.
    headers: Vec<(String, String)>,
    /// What lies between; nothing for the direct way.
    between: Processes,
}

/// What the rounds gave for one way, a value for each round.
#[derive(Default)]
struct Series {
    p50: Vec<f64>,
    p99: Vec<f64>,
    rate: Vec<f64>,
    /// CPU time of a call, in nanoseconds.
    cpu: Vec<f64>,
    calls: u64,
}

/// Measures for about `seconds`.
pub async fn measure(namespace: &TestNamespace, seconds: u64, report: &mut Report) {
    let load = Load::start(namespace).await;
    let mut ways = Box::pin(ways(namespace, &load)).await;
    let rounds = usize::try_from(seconds / (SLICE * SLICES).as_secs()).unwrap_or(usize::MAX).max(MIN_ROUNDS);
    let mut series: [Series; 3] = Default::default();
    let mut token_from = Instant::now();
    for round in 0..rounds {
        if token_from.elapsed() > TOKEN_LIFE {
            let token = namespace.token("alice").await;
            ways[HOP].headers.retain(|(name, _)| name != "authorization");
            ways[HOP].headers.push(bearer(&token));
            token_from = Instant::now();
        }
        for way in order(round, ways.len()) {
            let ran = load.run(&ways[way].run(1)).await;
            series[way].add_time(&ran);
        }
        for way in order(round, ways.len()) {
            let before = ways[way].between.cpu();
            let ran = load.run(&ways[way].run(CONNECTIONS)).await;
            series[way].add_rate(&ran, ways[way].between.cpu().saturating_sub(before));
        }
        progress(&format!("hop: round {} of {rounds}: {}", round + 1, last_round(&series)));
    }
    conclude(&series, rounds, report);
}

/// The three ways, each with an MCP session of its own.
async fn ways(namespace: &TestNamespace, load: &Load) -> Vec<Way> {
    let probe = Probe::start(namespace).await;
    let probe_pod = only_pod(&namespace.client, &namespace.name, "app=probe").await;
    progress("hop: a server, a session, and the bare pair");
    mcp_server(namespace, "probe", &probe.url(), json!({"pool": {"warm": 1, "maxPods": 1}})).await;
    session(namespace, "hop", "alice", &["probe"]).await;
    let gateway = gateway(&namespace.client).await;
    let sidecar = only_pod(&namespace.client, &namespace.name, POOL).await;
    // The sidecar dials the probe's Service, and so does the back.
    let service = namespace.api::<Service>().get("probe").await.unwrap();
    let upstream = service.spec.and_then(|spec| spec.cluster_ip).expect("the probe's Service has an address");
    let upstream = SocketAddr::new(upstream.parse().expect("it is one"), PORT);
    let pair = Pair::start(namespace, upstream).await;
    let token = namespace.token("alice").await;
    let between = Processes::of(&[(&gateway, "berth-gateway"), (&sidecar, "berth-sidecar")]);
    let bare = Processes::of(&[(&pair.front, "bench-pair"), (&pair.back, "bench-pair")]);
    let through = format!("/{}/hop/probe/mcp", namespace.name);
    vec![
        Way::open(load, address_of(&gateway), &through, Some(&token), between).await,
        Way::open(load, address_of(&pair.front), "/mcp", None, bare).await,
        Way::open(load, address_of(&probe_pod), "/mcp", None, Processes::of(&[])).await,
    ]
}

impl Way {
    async fn open(load: &Load, to: SocketAddr, path: &str, token: Option<&str>, between: Processes) -> Self {
        let mut headers = vec![
            ("content-type".to_owned(), "application/json".to_owned()),
            ("accept".to_owned(), "application/json, text/event-stream".to_owned()),
        ];
        headers.extend(token.map(bearer));
        let mut way = Self { to, path: path.to_owned(), headers, between };
        let params = json!({"protocolVersion": "2025-11-25", "capabilities": {},
            "clientInfo": {"name": "berth-bench", "version": "1"}});
        let initialize = json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params});
        let answer = way.send(load, &initialize, 200).await;
        let id = answer.headers.into_iter().find(|(name, _)| name == "mcp-session-id");
        way.headers.push(id.expect("initialize gives a session id"));
        way.headers.push(("mcp-protocol-version".to_owned(), "2025-11-25".to_owned()));
        let initialized = json!({"jsonrpc": "2.0", "method": "notifications/initialized"});
        way.send(load, &initialized, 202).await;
        way
    }

    async fn send(&self, load: &Load, message: &Value, status: u16) -> Answer {
        let answer = load.once(&self.post(message.to_string())).await;
        assert_eq!(answer.status, status, "{message} to {}{}: {answer:?}", self.to, self.path);
        answer
    }

    fn post(&self, body: String) -> Post {
        Post { to: self.to, path: self.path.clone(), headers: self.headers.clone(), body }
    }

    /// Calls of the probe's `echo`, the same bytes on every way.
    fn run(&self, connections: u16) -> Run {
        let message = "m".repeat(MESSAGE_BYTES);
        let body = format!(
            r#"{{"jsonrpc":"2.0","id":"{NUMBER}","method":"tools/call","params":{{"name":"echo","arguments":{{"message":"{message}"}}}}}}"#
        );
        let millis = u64::try_from(SLICE.as_millis()).expect("a slice is short");
        Run { post: self.post(body), expect: message, connections, millis }
    }
}

fn bearer(token: &str) -> (String, String) {
    ("authorization".to_owned(), format!("Bearer {token}"))
}

impl Series {
    fn add_time(&mut self, ran: &Ran) {
        self.p50.push(float(ran.p50_nanos));
        self.p99.push(float(ran.p99_nanos));
        self.calls += ran.calls;
    }

    fn add_rate(&mut self, ran: &Ran, cpu: Duration) {
        self.rate.push(float(ran.calls) * 1e9 / float(ran.nanos));
        // Each connection made one call before its time began.
        self.cpu.push(cpu.as_secs_f64() * 1e9 / float(ran.calls + u64::from(CONNECTIONS)));
        self.calls += ran.calls;
    }
}

fn last_round(series: &[Series; 3]) -> String {
    let micros = |way: usize| series[way].p50.last().map_or(0.0, |nanos| nanos / 1e3);
    let rate = |way: usize| series[way].rate.last().copied().unwrap_or_default();
    format!(
        "p50 {:.0}/{:.0}/{:.0} us, {:.0}/{:.0}/{:.0} calls/s (Berth/pair/direct)",
        micros(HOP),
        micros(PAIR),
        micros(DIRECT),
        rate(HOP),
        rate(PAIR),
        rate(DIRECT),
    )
}

fn conclude(series: &[Series; 3], rounds: usize, report: &mut Report) {
    let samples = rounds as u64;
    let [hop, pair, direct] = series;
    let mut add = |name, value: Option<f64>, unit, how: String| {
        let value = value.expect("there were rounds, and calls in each");
        report.add(name, Measure { value, unit, samples, how });
    };
    let call = format!("tools/call of echo, {MESSAGE_BYTES} B");
    let one = |what: &str, base: &str| format!("{what} of {call}, 1 connection: through Berth / {base}");
    let many = |what: &str, base: &str| {
        format!("{what} of {call}, {CONNECTIONS} connections: through Berth / {base}")
    };
    let how = one("p50", "the bare pair") + &format!("; {} calls", hop.calls);
    add("hop_p50", ratio_of_rounds(&hop.p50, &pair.p50), "ratio", how);
    add("hop_rps", ratio_of_rounds(&hop.rate, &pair.rate), "ratio", many("rate", "the bare pair"));
    add("hop_cpu", ratio_of_rounds(&hop.cpu, &pair.cpu), "ratio", many("utime+stime", "the bare pair"));
    add("hop_p99", ratio_of_rounds(&hop.p99, &pair.p99), "ratio", one("p99", "the bare pair"));
    add("hop_direct_p50", ratio_of_rounds(&hop.p50, &direct.p50), "ratio", one("p50", "the upstream direct"));
    let how = many("rate", "the upstream direct");
    add("hop_direct_rps", ratio_of_rounds(&hop.rate, &direct.rate), "ratio", how);
    for (way, p50, rate, series) in [
        ("through Berth", "hop_p50_us", "hop_calls_per_s", hop),
        ("through the bare pair", "pair_p50_us", "pair_calls_per_s", pair),
        ("to the upstream direct", "direct_p50_us", "direct_calls_per_s", direct),
    ] {
        let micros = median(&series.p50).map(|nanos| nanos / 1e3);
        add(p50, micros, "us", format!("p50 {way}, 1 connection"));
        add(rate, median(&series.rate), "calls/s", format!("rate {way}, {CONNECTIONS} connections"));
    }
    for (way, name, series) in
        [("gateway and sidecar", "hop_cpu_us", hop), ("the bare pair", "pair_cpu_us", pair)]
    {
        let micros = median(&series.cpu).map(|nanos| nanos / 1e3);
        add(name, micros, "us", format!("CPU time of {way} for a call, {CONNECTIONS} connections"));
    }
}

/// Exact below 2^53: nanoseconds of a hundred days.
#[allow(clippy::cast_precision_loss)]
fn float(count: u64) -> f64 {
    count as f64
}
