//! Faults below HTTP: a stream that is written a byte at a time, and connections that nobody answers.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use futures::FutureExt as _;
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, Interest, ReadBuf},
    net::TcpStream,
    time::{self, Sleep},
};

/// How often a connection that is never read is asked whether its peer is gone.
const LOOK: Duration = Duration::from_millis(20);

/// A TCP stream that may write only one byte each so often.
#[derive(Debug)]
pub struct Slow {
    stream: TcpStream,
    every: Option<Duration>,
    pause: Option<Pin<Box<Sleep>>>,
}

impl Slow {
    /// Slow if `every` is there, an ordinary stream otherwise.
    pub fn new(stream: TcpStream, every: Option<Duration>) -> Self {
        Self { stream, every, pause: None }
    }
}

impl AsyncRead for Slow {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for Slow {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let Some(every) = self.every else { return Pin::new(&mut self.stream).poll_write(cx, buf) };
        if let Some(pause) = &mut self.pause {
            ready!(pause.as_mut().poll(cx));
            self.pause = None;
        }
        let written = ready!(Pin::new(&mut self.stream).poll_write(cx, buf.get(..1).unwrap_or(buf)));
        self.pause = Some(Box::pin(time::sleep(every)));
        Poll::Ready(written)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// Holds a connection without reading a byte, until its peer is gone.
pub async fn hold(stream: TcpStream) {
    // Data that nobody reads hides the end from a read, but not from the readiness.
    loop {
        match stream.ready(Interest::READABLE).now_or_never() {
            Some(Ok(ready)) if ready.is_read_closed() => return,
            Some(Err(_)) => return,
            _ => time::sleep(LOOK).await,
        }
    }
}

/// Reads whatever comes, and says nothing, until the peer is gone.
pub async fn swallow(mut stream: TcpStream) {
    let mut buffer = vec![0; 4096];
    while stream.read(&mut buffer).await.is_ok_and(|read| read > 0) {}
}
