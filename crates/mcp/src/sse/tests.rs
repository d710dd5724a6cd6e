use super::*;
use proptest::prelude::*;

const LIMIT: usize = 4096;

fn decode(chunks: &[&[u8]]) -> Vec<Result<Event, TooLarge>> {
    let mut decoder = Decoder::new(LIMIT);
    let mut events = Vec::new();
    for chunk in chunks {
        decoder.feed(chunk);
        events.extend(std::iter::from_fn(|| decoder.next_event()));
    }
    events
}

fn data(text: &str) -> Event {
    Event { data: text.to_owned(), ..Event::default() }
}

#[test]
fn line_ends_comments_and_the_byte_order_mark_are_understood() {
    let stream = "\u{feff}data: a\n\n: comment\rdata:b\r\rdata: c\r\ndata:  d\r\n\r\n\n\n";
    assert_eq!(decode(&[stream.as_bytes()]), [Ok(data("a")), Ok(data("b")), Ok(data("c\n d"))]);
}

#[test]
fn fields_are_read_and_unknown_ones_skipped() {
    let stream = "id: 7\nevent: message\nretry: 1500\nfoo: bar\nretry: x\ndata\ndata: {}\n\nid: 8\ndata:\n\ndata:\n\nevent: e\n\n";
    let first = Event {
        event: Some("message".into()),
        id: Some("7".into()),
        retry_millis: Some(1500),
        data: "\n{}".into(),
    };
    let priming = Event { id: Some("8".into()), ..Event::default() };
    assert_eq!(decode(&[stream.as_bytes()]), [Ok(first), Ok(priming)]);
}

#[test]
fn an_event_without_its_blank_line_never_comes() {
    assert_eq!(decode(&[b"data: a\n"]), []);
}

#[test]
fn an_event_over_the_bound_is_told_once_and_the_next_one_read() {
    let large = "x".repeat(LIMIT);
    for (id, stream) in [
        (None, format!("data: {large}\ndata: more\n\ndata: b\n\n")),
        (Some("7"), format!("id: 7\ndata: {large}\nid: 8\n\ndata: b\n\n")),
        (None, format!("data: {}\ndata: {}\n\ndata: b\n\n", &large[..LIMIT / 2], &large[..=LIMIT / 2])),
    ] {
        let skipped = TooLarge { limit: LIMIT, id: id.map(str::to_owned) };
        let chunks: Vec<_> = stream.as_bytes().chunks(100).collect();
        assert_eq!(decode(&chunks), [Err(skipped.clone()), Ok(data("b"))]);
        assert_eq!(decode(&[stream.as_bytes()]), [Err(skipped), Ok(data("b"))]);
    }
}

/// Text of fields, with line ends of every kind only where they are allowed.
fn event() -> impl Strategy<Value = Event> {
    let word = "[a-z0-9é:]{0,8}";
    (prop::option::of(word), prop::option::of(word), prop::option::of(any::<u64>()), "[a-z :é\n]{1,40}")
        .prop_map(|(event, id, retry_millis, data)| Event { event, id, retry_millis, data })
}

#[test]
fn what_a_decoder_holds_is_counted_until_it_is_taken() {
    let mut decoder = Decoder::new(LIMIT);
    decoder.feed(b"data: 12345");
    let begun = decoder.held();
    assert!(begun >= 5, "{begun}");
    decoder.feed(b"\n\ndata: 678\n\n");
    assert_eq!(decoder.held(), 8);
    assert_eq!(decoder.next_event().unwrap().unwrap().data, "12345");
    assert_eq!(decoder.held(), 3);
    assert_eq!(decoder.next_event().unwrap().unwrap().data, "678");
    assert_eq!(decoder.held(), 0);
    decoder.feed(b"event: abc\nid: 12\ndata: 3\n\nid: 4567");
    assert_eq!(decoder.held(), 6 + "id: 4567".len());
    decoder.feed(b"\n");
    assert_eq!(decoder.held(), 6 + 4);
    decoder.feed(format!("data: {}\n\n", "x".repeat(LIMIT)).as_bytes());
    assert_eq!(decoder.held(), 6 + 4, "the id of an event that was skipped");
    assert!(decoder.next_event().unwrap().is_ok() && decoder.next_event().unwrap().is_err());
    assert_eq!(decoder.held(), 0);
}

#[test]
fn an_id_that_no_header_can_carry_counts_as_empty() {
    let stream = "id: 7\ndata: a\n\nid: 8\u{1}\ndata: b\n\nid: 9\u{7f}\ndata: c\n\nid: é\ndata: d\n\n";
    let ids: Vec<_> =
        decode(&[stream.as_bytes()]).into_iter().map(|event| event.unwrap().id.unwrap()).collect();
    assert_eq!(ids, ["7", "", "", "é"]);
}

#[test]
fn an_id_or_name_over_the_bound_counts_as_empty() {
    let (longest, longer) = ("x".repeat(MAX_FIELD), "x".repeat(MAX_FIELD + 1));
    let stream = format!(
        "event: {longest}\nid: {longest}\ndata: a\n\nid: 7\nevent: {longer}\nid: {longer}\ndata: b\n\nid: {longer}\n\n"
    );
    let first = Event { event: Some(longest.clone()), id: Some(longest), ..data("a") };
    let second = Event { event: Some(String::new()), id: Some(String::new()), ..data("b") };
    let third = Event { id: Some(String::new()), ..Event::default() };
    assert_eq!(decode(&[stream.as_bytes()]), [Ok(first), Ok(second), Ok(third)]);
}

proptest! {
    #[test]
    fn what_is_encoded_decodes_to_the_same(events in prop::collection::vec(event(), 0..5)) {
        let stream: Vec<u8> = events.iter().flat_map(encode).collect();
        let decoded: Result<Vec<_>, _> = decode(&[&stream]).into_iter().collect();
        prop_assert_eq!(decoded, Ok(events));
    }

    #[test]
    fn any_chunking_gives_the_same_events(
        stream in "(data|id|event|retry|x|:|\u{feff}|: |é|[0-9]|\r\n|\n|\r|\n\n){0,60}",
        cuts in prop::collection::vec(1_usize..8, 1..40),
    ) {
        let mut rest = stream.as_bytes();
        let mut chunks = Vec::new();
        for cut in cuts.iter().cycle() {
            if rest.is_empty() { break }
            let (chunk, more) = rest.split_at((*cut).min(rest.len()));
            chunks.push(chunk);
            rest = more;
        }
        prop_assert_eq!(decode(&chunks), decode(&[stream.as_bytes()]));
    }

    #[test]
    fn data_with_any_line_ends_comes_out_with_line_feeds(data in "[a\r\n]{1,12}") {
        let expected = data.replace("\r\n", "\n").replace('\r', "\n");
        let decoded = decode(&[&encode(&Event { id: Some("1".into()), data, ..Event::default() })]);
        prop_assert_eq!(decoded.into_iter().map(|event| event.unwrap().data).collect::<Vec<_>>(), [expected]);
    }
}
