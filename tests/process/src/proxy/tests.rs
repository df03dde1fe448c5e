use std::net::{SocketAddr, UdpSocket};
use std::time::Duration;

use super::{Endpoint, Network, Rule};

/// How long to wait for an expected packet.
const TIMEOUT: Duration = Duration::from_secs(10);
/// How long to wait for a packet that must not arrive.
const QUIET: Duration = Duration::from_millis(50);

/// Two nodes and a client, as plain sockets that the tests read.
struct Three {
    network: Network,
    nodes: [UdpSocket; 2],
    client: UdpSocket,
}

fn socket() -> UdpSocket {
    let socket = UdpSocket::bind("127.0.0.1:0").expect("socket");
    socket.set_read_timeout(Some(TIMEOUT)).expect("timeout");
    socket
}

impl Three {
    fn new() -> Self {
        let nodes = [socket(), socket()];
        let any: SocketAddr = "127.0.0.1:0".parse().expect("address");
        let pairs = nodes.each_ref().map(|node| (node.local_addr().expect("address"), any));
        Self { network: Network::start(&pairs, 7).expect("network"), nodes, client: socket() }
    }

    /// Sends a packet from node 0 to node 1. Returns the source that node 1 sees.
    fn send_to_1(&self, text: &[u8]) -> Option<SocketAddr> {
        self.nodes[0].send_to(text, self.network.front(1)).expect("sent");
        receive(&self.nodes[1], text)
    }
}

/// Reads until a packet with this content arrives.
fn receive(socket: &UdpSocket, text: &[u8]) -> Option<SocketAddr> {
    let mut buffer = [0; 64];
    loop {
        let (length, from) = socket.recv_from(&mut buffer).ok()?;
        if &buffer[..length] == text {
            return Some(from);
        }
    }
}

fn receives_nothing(socket: &UdpSocket) {
    socket.set_read_timeout(Some(QUIET)).expect("timeout");
    let received = socket.recv_from(&mut [0; 64]);
    socket.set_read_timeout(Some(TIMEOUT)).expect("timeout");
    assert!(received.is_err(), "{received:?}");
}

#[test]
fn each_source_has_its_own_port_and_gets_replies_there() {
    let three = Three::new();
    let port = three.send_to_1(b"hello").expect("received");
    three.nodes[1].send_to(b"back", port).expect("sent");
    assert_eq!(receive(&three.nodes[0], b"back"), Some(three.network.front(1)));
    three.client.send_to(b"client", three.network.front(1)).expect("sent");
    let other = receive(&three.nodes[1], b"client").expect("received");
    assert_ne!(other, port, "each source has its own port");
    assert_eq!(three.send_to_1(b"again"), Some(port));
    let counts = |from, to| three.network.counts(from, to).passed;
    assert_eq!(counts(Endpoint::Node(0), Endpoint::Node(1)), 2);
    assert_eq!(counts(Endpoint::Node(1), Endpoint::Node(0)), 1);
    assert_eq!(counts(Endpoint::Clients, Endpoint::Node(1)), 1);
}

#[test]
fn a_one_way_cut_blocks_all_connections_in_one_direction() {
    let three = Three::new();
    let at_1 = three.send_to_1(b"a").expect("received");
    three.nodes[1].send_to(b"b", three.network.front(0)).expect("sent");
    let at_0 = receive(&three.nodes[0], b"b").expect("received");
    three.network.set(Endpoint::Node(0), Endpoint::Node(1), Rule::CUT);
    // On the connection that node 0 opened, and on the one that node 1 opened.
    three.nodes[0].send_to(b"c", three.network.front(1)).expect("sent");
    three.nodes[0].send_to(b"c", at_0).expect("sent");
    receives_nothing(&three.nodes[1]);
    assert_eq!(three.network.counts(Endpoint::Node(0), Endpoint::Node(1)).cut, 2);
    // The other direction, on both connections.
    three.nodes[1].send_to(b"d", at_1).expect("sent");
    assert!(receive(&three.nodes[0], b"d").is_some());
    three.nodes[1].send_to(b"e", three.network.front(0)).expect("sent");
    assert!(receive(&three.nodes[0], b"e").is_some());
    three.client.send_to(b"f", three.network.front(1)).expect("sent");
    assert!(receive(&three.nodes[1], b"f").is_some());
    three.network.heal();
    assert_eq!(three.send_to_1(b"g"), Some(at_1), "the port is still the same");
}

#[test]
fn a_cut_off_node_receives_nothing_from_nodes_or_clients() {
    let three = Three::new();
    three.network.around(1, Rule::CUT);
    three.nodes[0].send_to(b"a", three.network.front(1)).expect("sent");
    three.client.send_to(b"a", three.network.front(1)).expect("sent");
    receives_nothing(&three.nodes[1]);
    three.client.send_to(b"b", three.network.front(0)).expect("sent");
    assert!(receive(&three.nodes[0], b"b").is_some());
    assert_eq!(three.network.total().cut, 2);
}

#[test]
fn a_bad_link_injects_its_faults_and_counts_them() {
    let three = Three::new();
    let late = Rule::late(Duration::from_millis(1), Duration::from_millis(20));
    let bad = Rule { loss: 200, double: 200, ..late };
    three.network.set(Endpoint::Node(0), Endpoint::Node(1), bad);
    for number in 0..500_u16 {
        three.nodes[0].send_to(&number.to_be_bytes(), three.network.front(1)).expect("sent");
    }
    let mut numbers = Vec::new();
    let counts = loop {
        let mut buffer = [0; 2];
        three.nodes[1].recv_from(&mut buffer).expect("received");
        numbers.push(u16::from_be_bytes(buffer));
        let counts = three.network.counts(Endpoint::Node(0), Endpoint::Node(1));
        if counts.passed + counts.lost == 500
            && numbers.len() as u64 == counts.passed + counts.doubled
        {
            break counts;
        }
    };
    assert!(counts.lost > 0 && counts.doubled > 0 && counts.overtaken > 0, "{counts:?}");
    assert_eq!(counts.delayed, counts.passed);
    assert!(!numbers.is_sorted(), "some arrived out of order");
    numbers.sort_unstable();
    numbers.dedup();
    assert_eq!(numbers.len() as u64, counts.passed, "every passed packet arrived");
}

#[test]
fn a_source_gets_a_new_address_after_its_port_is_forgotten() {
    let three = Three::new();
    let before = three.send_to_1(b"a").expect("received");
    three.network.forget(1);
    let after = three.send_to_1(b"b").expect("received");
    assert_ne!(before, after);
    three.nodes[1].send_to(b"c", before).expect("sent");
    receives_nothing(&three.nodes[0]);
}
