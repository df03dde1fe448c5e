//! A shop for trying out the cart: see the README. It honours idempotency keys.
#![allow(clippy::print_stdout, reason = "it prints the orders")]

use std::collections::HashMap;
use std::error::Error;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};

fn main() -> Result<(), Box<dyn Error>> {
    let listener = TcpListener::bind("127.0.0.1:8080")?;
    println!("shop: http://localhost:8080 sells tea and cake");
    let mut orders = HashMap::new();
    for stream in listener.incoming() {
        if let Err(error) = serve(stream?, &mut orders) {
            println!("shop: {error}");
        }
    }
    Ok(())
}

/// Answers one request. `orders` has the number of each order, by its idempotency key.
fn serve(mut stream: TcpStream, orders: &mut HashMap<String, usize>) -> Result<(), Box<dyn Error>> {
    let mut reader = BufReader::new(stream.try_clone()?);
    let mut first = String::new();
    reader.read_line(&mut first)?;
    let (mut length, mut key) = (0, String::new());
    for line in reader.by_ref().lines() {
        let line = line?;
        let Some((name, value)) = line.split_once(": ") else { break };
        match &*name.to_ascii_lowercase() {
            "content-length" => length = value.parse()?,
            "idempotency-key" => key = value.to_owned(),
            _ => {}
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    let (status, answer) = match first.split(" HTTP/").next() {
        Some("GET /prices/tea") => ("200 OK", r#"{"cents":350}"#.to_owned()),
        Some("GET /prices/cake") => ("200 OK", r#"{"cents":420}"#.to_owned()),
        Some("POST /orders") => {
            let next = orders.len() + 1;
            let number = *orders.entry(key).or_insert(next);
            let what = if number == next { "order" } else { "a copy of order" };
            println!("shop: {what} {number}: {}", String::from_utf8_lossy(&body));
            ("201 Created", format!(r#"{{"order":"{number}"}}"#))
        }
        _ => ("404 Not Found", "null".to_owned()),
    };
    write!(stream, "HTTP/1.1 {status}\r\ncontent-length: {}\r\n\r\n{answer}", answer.len())?;
    Ok(())
}
