//! The carts of `examples/cart` on three nodes, with a shop that honours idempotency keys: one order, although the node
//! that sends it dies; and carts that nobody touches disappear.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use ostraca_client::{Client, Entity};
use ostraca_process_tests::cluster::Options;
use ostraca_process_tests::guest_calls::until;
use ostraca_process_tests::{Cluster, artifacts};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::timeout;

/// A shop on loopback: `GET /prices/tea` and `POST /orders`. It handles an order, but answers only once it is open.
struct Shop {
    address: SocketAddr,
    state: watch::Sender<State>,
}

#[derive(Default)]
struct State {
    open: bool,
    /// Requests with orders, copies included.
    requests: usize,
    /// The carts' orders by idempotency key.
    orders: BTreeMap<String, Value>,
}

impl Shop {
    async fn start() -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let state = watch::Sender::new(State::default());
        let shared = state.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                // A connection ends with its request, or with the node that made it.
                tokio::spawn(serve(stream, shared.clone()));
            }
        });
        Ok(Self { address, state })
    }
}

async fn serve(mut stream: TcpStream, state: watch::Sender<State>) -> Result<()> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await?);
    }
    let head = String::from_utf8(head)?;
    let header = |name: &str| head.lines().find_map(|line| line.strip_prefix(name));
    let mut body = vec![0; header("content-length: ").map_or(Ok(0), str::parse)?];
    stream.read_exact(&mut body).await?;
    let (status, answer) = if head.starts_with("GET /prices/tea ") {
        ("200 OK", json!({ "cents": 350 }))
    } else if head.starts_with("POST /orders ") {
        let key = header("idempotency-key: ").context("a key")?.to_owned();
        let order: Value = serde_json::from_slice(&body)?;
        let number = key.clone();
        state.send_modify(|state| {
            state.requests += 1;
            state.orders.entry(key).or_insert(order);
        });
        state.subscribe().wait_for(|state| state.open).await?;
        ("201 Created", json!({ "order": number }))
    } else {
        ("404 Not Found", json!(null))
    };
    let answer = answer.to_string();
    let head = format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\n\r\n", answer.len());
    stream.write_all((head + &answer).as_bytes()).await?;
    Ok(stream.shutdown().await?)
}

/// Deploys the example, with a grant of this shop and another time to live.
async fn deploy(client: &Client, shop: &Shop, time_to_live: &str) -> Result<()> {
    let manifest = artifacts::manifest("cart")?;
    let manifest = manifest.replace("localhost:8080", &shop.address.to_string());
    let manifest = manifest.replace("14 d", time_to_live);
    client.deploy(&manifest, artifacts::component("cart")?, None).await?;
    Ok(())
}

async fn send(client: &Client, cart: &Entity, method: &str, body: Value) -> Result<Value> {
    let reply = client.session().command(cart, method, body.to_string()).await;
    serde_json::from_slice(&reply.with_context(|| method.to_owned())?.body).context("a JSON reply")
}

async fn contents(client: &Client, cart: &Entity) -> Result<Value> {
    let reply = client.session().query(cart, "contents", "").await?;
    serde_json::from_slice(&reply.body).context("a JSON reply")
}

/// Opens a cart and adds two items.
async fn fill(client: &Client, shop: &Shop, cart: &Entity) -> Result<()> {
    send(client, cart, "open", json!(format!("http://{}", shop.address))).await?;
    let total = send(client, cart, "add", json!({ "item": "tea", "quantity": 2 })).await?;
    ensure!(total == 700, "{total}");
    Ok(())
}

async fn carts() -> Result<()> {
    let shop = Shop::start().await?;
    let mut options = Options::three("cart");
    options.settings = "[outgoing-http]\nallow-addresses = [\"127.0.0.1\"]\n".into();
    let mut cluster = Cluster::start(&options).await?;
    cluster.wait_settled().await?;
    let client = cluster.client(0).await?;
    deploy(&client, &shop, "14 d").await?;
    let owner = 1;
    let id = cluster.ids_owned_by(owner, "cart", 1).await?.remove(0);
    let cart = Entity::new("cart", id);
    fill(&client, &shop, &cart).await?;
    send(&client, &cart, "checkout", json!(null)).await?;
    let requests = async |count: usize| {
        let found = async || Ok((shop.state.borrow().requests >= count).then_some(()));
        until("requests with orders", found).await
    };
    requests(1).await?;
    cluster.kill_9(owner)?;
    requests(2).await?;
    shop.state.send_modify(|state| state.open = true);
    let ordered = async || {
        let status = contents(&client, &cart).await?["status"].clone();
        Ok(status["ordered"]["order"].as_str().map(str::to_owned))
    };
    let number = until("the order is confirmed", ordered).await?;
    {
        let state = shop.state.borrow();
        let lines = json!({ "tea": { "quantity": 2, "cents": 350 } });
        let expected = json!({ "cart": &*cart.id, "lines": lines });
        ensure!(state.orders == BTreeMap::from([(number, expected)]), "{:?}", state.orders);
    }

    deploy(&client, &shop, "2 s").await?;
    let left = Entity::new("cart", "left");
    fill(&client, &shop, &left).await?;
    let gone = async || {
        let lines = contents(&client, &left).await?["lines"].clone();
        Ok((lines == json!({})).then_some(()))
    };
    until("the cart is deleted", gone).await?;
    let kept = contents(&client, &cart).await?["status"].clone();
    ensure!(kept["ordered"].is_object(), "the cart that was ordered is kept: {kept}");
    client.close().await;
    cluster.stop()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cart_orders_once_and_expires() {
    timeout(Duration::from_secs(300), carts()).await.expect("in time").expect("carts");
}
