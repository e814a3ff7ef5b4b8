//! A Hub of one repository on 127.0.0.1: the endpoints that the client calls, a log of what it asked, and faults on
//! demand. Weights are answered as the real Hub does, by a redirect that carries size and hash in `x-linked-…`.
#![allow(dead_code, reason = "each test program uses some of it")]

use std::collections::hash_map::DefaultHasher;
use std::collections::{BTreeMap, HashMap};
use std::hash::{Hash, Hasher};
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

pub type Files = BTreeMap<String, Vec<u8>>;

/// A fault in a file's body.
#[derive(Clone, Copy, Debug)]
pub enum Fault {
    /// `content-length` announces the whole file, half of it is sent, and the connection ends.
    Truncated,
    /// A chunked body whose connection ends halfway through a chunk.
    Cut,
    /// Half the file without a length: the connection's end looks like the file's.
    EndsEarly,
    /// The metadata is served, the body is an error page.
    ErrorPage(u16),
    /// Half the file, then nothing, with an open connection.
    Stalls,
    /// Not even the metadata is served, with the connection open.
    Silent,
    /// Every answer sends on to the same address.
    RedirectsInACircle,
}

/// Headers that a malicious server sends instead of its own.
#[derive(Clone, Debug, Default)]
pub struct Headers {
    pub etag: Option<String>,
    pub commit: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    pub method: String,
    pub path: String,
    pub authorization: Option<String>,
}

/// The repository and its faults; tests change it while the server runs.
#[derive(Default)]
pub struct Repo {
    pub id: String,
    /// Branch or tag to commit.
    pub revisions: BTreeMap<String, String>,
    pub commits: BTreeMap<String, Files>,
    /// The one token that may read.
    pub token: Option<String>,
    /// Answer to everything, with the Hub's error code.
    pub refuse: Option<(u16, &'static str)>,
    pub faults: HashMap<String, Fault>,
    pub headers: HashMap<String, Headers>,
    /// A prefix for each ETag, such as `W/`.
    pub before_etag: &'static str,
    /// The address of another server, which sends the weights' contents.
    pub contents_at: Option<String>,
    /// Additional entries in the listing.
    pub entries: Vec<serde_json::Value>,
}

pub struct Server {
    address: SocketAddr,
    shared: Arc<Shared>,
    listener: Option<JoinHandle<()>>,
}

struct Shared {
    address: SocketAddr,
    repo: Mutex<Repo>,
    requests: Mutex<Vec<Request>>,
    stopping: AtomicBool,
}

impl Server {
    pub fn start(repo: Repo) -> std::io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared {
            address,
            repo: Mutex::new(repo),
            requests: Mutex::default(),
            stopping: AtomicBool::new(false),
        });
        let serving = Arc::clone(&shared);
        let listener = std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                if serving.stopping.load(Ordering::SeqCst) {
                    break;
                }
                let serving = Arc::clone(&serving);
                // A client that hangs up is the test's business, not the server's.
                std::thread::spawn(move || serving.serve(stream).ok());
            }
        });
        Ok(Self {
            address,
            shared,
            listener: Some(listener),
        })
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub fn repo(&self) -> MutexGuard<'_, Repo> {
        lock(&self.shared.repo)
    }

    pub fn requests(&self) -> Vec<Request> {
        lock(&self.shared.requests).clone()
    }

    /// Returns the paths of GET requests for a file's body.
    pub fn bodies(&self) -> Vec<String> {
        self.requests()
            .into_iter()
            .filter(|request| request.method == "GET" && request.path.contains("/resolve/"))
            .map(|request| request.path)
            .collect()
    }
}

impl Drop for Server {
    /// Closes the port, so that the next request is refused by the system.
    fn drop(&mut self) {
        self.shared.stopping.store(true, Ordering::SeqCst);
        let woken = TcpStream::connect(self.address).is_ok();
        if let Some(listener) = self.listener.take()
            && woken
        {
            listener.join().ok();
        }
    }
}

impl Shared {
    fn serve(&self, stream: TcpStream) -> std::io::Result<()> {
        let mut lines = BufReader::new(stream.try_clone()?).lines();
        let first = lines.next().unwrap_or(Ok(String::new()))?;
        let mut words = first.split(' ');
        let method = words.next().unwrap_or_default().to_string();
        let path = words.next().unwrap_or_default().to_string();
        let mut authorization = None;
        for line in lines {
            let line = line?;
            if line.is_empty() {
                break;
            }
            if let Some((name, value)) = line.split_once(": ")
                && name.eq_ignore_ascii_case("authorization")
            {
                authorization = Some(value.to_string());
            }
        }
        let request = Request {
            method,
            path,
            authorization,
        };
        lock(&self.requests).push(request.clone());
        self.answer(&request, stream)
    }

    fn answer(&self, request: &Request, stream: TcpStream) -> std::io::Result<()> {
        let repo = lock(&self.repo);
        if let Some((status, code)) = repo.refuse {
            return error(stream, status, code);
        }
        let bearer = repo.token.as_ref().map(|token| format!("Bearer {token}"));
        if bearer.is_some() && bearer != request.authorization {
            return error(stream, 401, "GatedRepo");
        }
        let path = request.path.split('?').next().unwrap_or_default();
        let api = format!("/api/models/{}/", repo.id);
        let resolve = format!("/{}/resolve/", repo.id);
        if let Some(revision) = path.strip_prefix(&*format!("{api}revision/")) {
            match repo.revisions.get(&revision.replace("%2F", "/")) {
                Some(commit) => {
                    let body = serde_json::json!({"id": repo.id, "sha": commit});
                    ok(stream, body.to_string().as_bytes())
                }
                None => error(stream, 404, "RevisionNotFound"),
            }
        } else if let Some(commit) = path.strip_prefix(&*format!("{api}tree/")) {
            match repo.commits.get(commit) {
                Some(files) => ok(stream, listing(files, &repo.entries).as_bytes()),
                None => error(stream, 404, "RevisionNotFound"),
            }
        } else if let Some((commit, name)) = path
            .strip_prefix(&*resolve)
            .and_then(|rest| rest.split_once('/'))
        {
            match repo.commits.get(commit).and_then(|files| files.get(name)) {
                Some(body) => {
                    let headers = repo.headers.get(name).cloned().unwrap_or_default();
                    let fault = repo.faults.get(name).copied();
                    let body = body.clone();
                    let own = format!("http://{}", self.address);
                    let contents_at = repo.contents_at.clone().unwrap_or(own);
                    let described = (repo.before_etag, &*contents_at);
                    drop(repo); // a silent answer takes long
                    self.file(
                        request,
                        stream,
                        (commit, name, &headers),
                        described,
                        &body,
                        fault,
                    )
                }
                None => error(stream, 404, "EntryNotFound"),
            }
        } else if let Some(hash) = path.strip_prefix("/cdn/") {
            let all = repo.commits.values().flatten();
            match all.into_iter().find(|(_, body)| etag(body) == hash) {
                Some((name, body)) => {
                    let (body, fault) = (body.clone(), repo.faults.get(name).copied());
                    drop(repo);
                    send(stream, &body, fault)
                }
                None => error(stream, 404, "EntryNotFound"),
            }
        } else {
            error(stream, 404, "RepoNotFound")
        }
    }

    fn file(
        &self,
        request: &Request,
        mut stream: TcpStream,
        (commit, name, headers): (&str, &str, &Headers),
        (before_etag, contents_at): (&str, &str),
        body: &[u8],
        fault: Option<Fault>,
    ) -> std::io::Result<()> {
        match fault {
            Some(Fault::Silent) => return wait_for_the_end(stream),
            Some(Fault::RedirectsInACircle) => {
                let path = &request.path;
                return write!(
                    stream,
                    "HTTP/1.1 302 Found\r\nlocation: {path}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
                );
            }
            _ => {}
        }
        let content = etag(body);
        let hash = headers.etag.as_deref().unwrap_or(&content);
        let commit = headers.commit.as_deref().unwrap_or(commit);
        let length = body.len();
        if name.ends_with(".safetensors") {
            return write!(
                stream,
                "HTTP/1.1 302 Found\r\nlocation: {contents_at}/cdn/{content}\r\nx-repo-commit: {commit}\r\n\
                 x-linked-etag: \"{hash}\"\r\nx-linked-size: {length}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
            );
        }
        if request.method == "HEAD" {
            return write!(
                stream,
                "HTTP/1.1 200 OK\r\netag: {before_etag}\"{hash}\"\r\nx-repo-commit: {commit}\r\ncontent-length: {length}\r\n\
                 connection: close\r\n\r\n"
            );
        }
        send(stream, body, fault)
    }
}

fn send(mut stream: TcpStream, body: &[u8], fault: Option<Fault>) -> std::io::Result<()> {
    let half = &body[..body.len() / 2];
    match fault {
        None | Some(Fault::Silent | Fault::RedirectsInACircle) => ok(stream, body),
        Some(Fault::Stalls) => {
            let length = body.len();
            write!(
                stream,
                "HTTP/1.1 200 OK\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n"
            )?;
            stream.write_all(half)?;
            wait_for_the_end(stream)
        }
        Some(Fault::Truncated) => {
            let length = body.len();
            write!(
                stream,
                "HTTP/1.1 200 OK\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n"
            )?;
            stream.write_all(half)
        }
        Some(Fault::Cut) => {
            let length = body.len();
            write!(
                stream,
                "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\nconnection: close\r\n\r\n{length:x}\r\n"
            )?;
            stream.write_all(half)
        }
        Some(Fault::EndsEarly) => {
            write!(stream, "HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n")?;
            stream.write_all(half)
        }
        Some(Fault::ErrorPage(status)) => error(stream, status, ""),
    }
}

/// Keeps a connection open, silently, until the client closes it.
fn wait_for_the_end(mut stream: TcpStream) -> std::io::Result<()> {
    std::io::copy(&mut stream, &mut std::io::sink()).map(drop)
}

fn ok(mut stream: TcpStream, body: &[u8]) -> std::io::Result<()> {
    write!(
        stream,
        "HTTP/1.1 200 OK\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
        body.len()
    )?;
    stream.write_all(body)
}

fn error(mut stream: TcpStream, status: u16, code: &str) -> std::io::Result<()> {
    let body = r#"{"error": "no"}"#;
    write!(
        stream,
        "HTTP/1.1 {status} No\r\nx-error-code: {code}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
        body.len()
    )
}

fn listing(files: &Files, more: &[serde_json::Value]) -> String {
    let mut entries: Vec<_> = files
        .iter()
        .map(|(path, body)| {
            serde_json::json!({"type": "file", "oid": etag(body), "size": body.len(), "path": path})
        })
        .collect();
    entries.extend_from_slice(more);
    serde_json::Value::from(entries).to_string()
}

fn etag(body: &[u8]) -> String {
    let mut hasher = DefaultHasher::new();
    body.hash(&mut hasher);
    format!("{:016x}", hasher.finish())
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
