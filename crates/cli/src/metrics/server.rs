//! `GET /metrics` over HTTP.
//!
//! Invariant: scrapers cost at most [`THREADS_MAX`] threads, [`REQUEST_BYTES_MAX`] and [`REQUEST_TIMEOUT`] each,
//! whatever they send.

use crate::failure::{Failure, Outcome};
use httparse::Status;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

const REQUEST_BYTES_MAX: usize = 8 << 10;
const HEADERS_MAX: usize = 100;
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
const SCRAPERS_MAX: usize = 4;
/// Includes those that lost their place and are closing.
const THREADS_MAX: usize = 2 * SCRAPERS_MAX;
/// How long those may take.
const EVICTION_TIMEOUT: Duration = Duration::from_millis(500);

/// Listens for scrapers.
pub fn listen(address: &str) -> Outcome<TcpListener> {
    TcpListener::bind(address).map_err(|error| {
        Failure(format!("metrics on {address:?}: expected an ADDRESS:PORT that is free here, found: {error}"))
    })
}

/// The connected scrapers, the oldest first.
#[derive(Default)]
struct Scrapers {
    all: Mutex<Vec<Scraper>>,
    /// One has disconnected.
    exited: Condvar,
}

struct Scraper {
    number: u64,
    stream: TcpStream,
    /// Its request was read, so it will be answered.
    has_request: bool,
    /// Another scraper has its place, and its thread ends.
    is_evicted: bool,
}

impl Scrapers {
    fn all(&self) -> MutexGuard<'_, Vec<Scraper>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Admits a scraper. If there is no place, the scraper that has sent nothing for the longest loses its own.
    /// So a scraper that sends its request at once is always answered, however many only connect.
    fn admit(&self, number: u64, stream: &TcpStream) -> std::io::Result<()> {
        let mut all = self.all();
        if all.iter().filter(|scraper| !scraper.is_evicted).count() >= SCRAPERS_MAX {
            let victim = all.iter_mut().find(|scraper| !scraper.has_request && !scraper.is_evicted);
            let victim = victim.ok_or(ErrorKind::WouldBlock)?;
            victim.is_evicted = true;
            // Its thread reads end of file.
            let _ = victim.stream.shutdown(Shutdown::Both);
        }
        // Those whose connection was shut down disconnect in a moment.
        let waited = self.exited.wait_timeout_while(all, EVICTION_TIMEOUT, |all| all.len() >= THREADS_MAX);
        let (mut all, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
        if timeout.timed_out() {
            return Err(ErrorKind::WouldBlock.into());
        }
        all.push(Scraper { number, stream: stream.try_clone()?, has_request: false, is_evicted: false });
        Ok(())
    }

    fn mark_request_read(&self, number: u64) {
        self.all()
            .iter_mut()
            .filter(|scraper| scraper.number == number)
            .for_each(|scraper| scraper.has_request = true);
    }

    fn remove(&self, number: u64) {
        self.all().retain(|scraper| scraper.number != number);
        self.exited.notify_all();
    }
}

/// Answers scrapers for as long as the process lives.
pub fn serve(listener: TcpListener, render: Arc<dyn Fn() -> String + Send + Sync>) {
    let scrapers: Arc<Scrapers> = Arc::default();
    for (number, stream) in (0u64..).zip(listener.incoming()) {
        let Ok(stream) = stream else {
            // Most likely out of descriptors, which passes.
            std::thread::sleep(Duration::from_millis(100));
            continue;
        };
        if scrapers.admit(number, &stream).is_err() {
            continue;
        }
        let render = Arc::clone(&render);
        let answering = std::thread::Builder::new().name("metrics".into()).spawn({
            let scrapers = Arc::clone(&scrapers);
            move || {
                // A scraper that disconnects needs nothing more.
                let _ = answer(stream, &*render, &|| scrapers.mark_request_read(number));
                scrapers.remove(number);
            }
        });
        if let Err(error) = answering {
            scrapers.remove(number);
            log::warn!("metrics request dropped, no thread started: {error}");
        }
    }
}

fn answer(mut stream: TcpStream, render: &dyn Fn() -> String, on_request: &dyn Fn()) -> std::io::Result<()> {
    stream.set_write_timeout(Some(REQUEST_TIMEOUT))?;
    let text = "text/plain; charset=utf-8";
    let request = request(&mut stream)?;
    if request.is_some() {
        on_request();
    }
    let (status, kind, body) = match request.as_ref().map(|(method, path)| (&**method, &**path)) {
        Some(("GET", "/metrics")) => ("200 OK", "text/plain; version=0.0.4; charset=utf-8", render()),
        Some(("GET", _)) => ("404 Not Found", text, "not found: only /metrics is served\n".to_owned()),
        Some(_) => ("405 Method Not Allowed", text, "method not allowed: only GET is served\n".to_owned()),
        None => ("400 Bad Request", text, "malformed HTTP request\n".to_owned()),
    };
    let length = body.len();
    let head = format!(
        "HTTP/1.0 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n"
    );
    stream.write_all(head.as_bytes())?;
    stream.write_all(body.as_bytes())
}

/// Method and path of a request; `None`: its head did not come whole, is too long, or is none of HTTP.
fn request(stream: &mut TcpStream) -> std::io::Result<Option<(String, String)>> {
    let begun = Instant::now();
    let mut head = Vec::new();
    let mut piece = [0; 1024];
    loop {
        let left = REQUEST_TIMEOUT.saturating_sub(begun.elapsed());
        if left.is_zero() {
            return Ok(None);
        }
        stream.set_read_timeout(Some(left))?;
        let len = match stream.read(&mut piece) {
            Ok(0) => return Ok(None),
            Ok(len) => len,
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                return Ok(None);
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        head.extend_from_slice(piece.get(..len).unwrap_or(&[]));
        match parse(&head) {
            Ok(Status::Complete(request)) => return Ok(Some(request)),
            Ok(Status::Partial) if head.len() <= REQUEST_BYTES_MAX => {}
            Ok(Status::Partial) | Err(_) => return Ok(None),
        }
    }
}

/// Method and path of a request, without the query string.
fn parse(head: &[u8]) -> httparse::Result<(String, String)> {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut request = httparse::Request::new(&mut headers);
    if request.parse(head)?.is_partial() {
        return Ok(Status::Partial);
    }
    let path = request.path.and_then(|target| target.split('?').next());
    Ok(Status::Complete((request.method.unwrap_or_default().to_owned(), path.unwrap_or_default().to_owned())))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(address: std::net::SocketAddr, request: &[u8]) -> String {
        let mut stream = TcpStream::connect(address).unwrap();
        // The server may answer and close before it has read all of it.
        let _ = stream.write_all(request);
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let mut response = Vec::new();
        let _ = stream.read_to_end(&mut response);
        String::from_utf8(response).unwrap()
    }

    #[test]
    fn scrapers_are_answered_and_garbage_is_refused() {
        let listener = listen("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        assert!(listen(&address.to_string()).unwrap_err().0.contains("in use"));
        std::thread::spawn(move || serve(listener, Arc::new(|| "terrane_info 1\n".to_owned())));
        let good = ask(address, b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
        assert!(good.starts_with("HTTP/1.0 200 OK\r\n") && good.contains("Content-Length: 15\r\n"), "{good}");
        assert!(good.ends_with("\r\n\r\nterrane_info 1\n"), "{good}");
        let long = [b"GET /metrics HTTP/1.0\r\nx: ".to_vec(), vec![b'a'; 100_000]].concat();
        let many =
            [&b"GET /metrics HTTP/1.0\r\n"[..], &b"x: y\r\n".repeat(HEADERS_MAX + 1), b"\r\n"].concat();
        for (request, code) in [
            (&b"GET /metrics?x=1 HTTP/1.0\n\n"[..], "200"),
            (b"GET / HTTP/1.0\r\n\r\n", "404"),
            (b"POST /metrics HTTP/1.0\r\n\r\n", "405"),
            (b"GET /metrics\r\n\r\n", "400"),
            (b" / HTTP/1.0\r\n\r\n", "400"),
            (b"\0\xff\xfe\r\n\r\n", "400"),
            (b"GET /metrics HTTP/1.0\r\nno colon\r\n\r\n", "400"),
            (&many, "400"),
            (b"GET /metrics HTTP/1.0\r\n", "400"),
            (b"", "400"),
            (&long, "400"),
        ] {
            let response = ask(address, request);
            // Unread bytes reset the connection, which may lose the answer.
            let reset = request.len() > REQUEST_BYTES_MAX && response.is_empty();
            assert!(reset || response.starts_with(&format!("HTTP/1.0 {code} ")), "{request:?}: {response}");
        }
        // Silent connections keep out no scraper that sends a request.
        let mut silent: Vec<TcpStream> = (0..20).map(|_| TcpStream::connect(address).unwrap()).collect();
        for _ in 0..70 {
            let begun = Instant::now();
            let response = ask(address, b"GET /metrics HTTP/1.0\r\n\r\n");
            assert!(
                response.starts_with("HTTP/1.0 200") && begun.elapsed() < REQUEST_TIMEOUT / 2,
                "{response}"
            );
            silent.push(TcpStream::connect(address).unwrap());
        }
    }
}
