//! What several tests share: a server of one canned answer.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;

/// Answers every request with the same status and event stream; gives its address.
pub(crate) fn serve(status: u16, body: String) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = format!("http://{}", listener.local_addr().expect("an address"));
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let mut reader = BufReader::new(&stream);
            let mut length = 0;
            let mut line = String::new();
            while reader.read_line(&mut line).is_ok_and(|n| n > 2) {
                if let Some(n) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                    length = n.trim().parse().unwrap_or(0);
                }
                line.clear();
            }
            let _ = reader.read_exact(&mut vec![0; length]);
            let head = format!(
                "HTTP/1.1 {status} X\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"
            );
            let _ = (&stream).write_all(head.as_bytes()).and_then(|()| (&stream).write_all(body.as_bytes()));
        }
    });
    address
}
