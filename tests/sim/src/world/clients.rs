//! Clients: what they send, when they send it again, and where it arrives.

use super::*;

impl World {
    pub(super) fn issue(&mut self, client: usize) {
        if self.issued >= self.options.messages {
            return;
        }
        let client = self.maybe_another(client);
        let delay = self.rng.range(1, 40);
        self.at(delay, Happening::Issue { client });
        if self.clients[client].pending.len() >= 8 {
            return;
        }
        for _ in 0..self.rng.range(1, 4) {
            self.issued += 1;
            let id = self.rng.range(0, 4);
            let kind = if id == 3 { "starter" } else { "counter" };
            let (kind_of, method, by) = match self.rng.range(0, 10) {
                of_ten if of_ten < self.options.queries => (Kind::Query, "get", 0),
                0..=4 => (Kind::Command, "take", self.rng.range(1, 20)),
                _ => (Kind::Command, "add", self.rng.range(1, 10)),
            };
            let patience = self.rng.chance(self.options.impatient).then(|| self.rng.range(5, 200));
            let entity = Entity::new(kind, format!("{id}"));
            let pending = Pending::new(entity, (kind_of, method, by), self.now, patience);
            let sequence = self.clients[client].begin(pending);
            self.send(client, sequence);
        }
    }

    pub(super) fn send(&mut self, client: usize, sequence: u64) {
        let Some(message) = self.clients[client].copy(sequence) else { return };
        let doubled = self.rng.chance(4);
        if doubled {
            self.tally.count("fault: message doubled");
        }
        let burst = if self.rng.chance(1) { 20 } else { 1 };
        for _ in 0..if doubled { 1 + burst } else { 1 } {
            if let Some(pending) = self.clients[client].pending.get_mut(&sequence) {
                pending.copies += 1;
            }
            self.post(client, false, message.clone());
        }
        if self.rng.chance(3) {
            // A gateway that stands still passes it on when it goes on.
            self.tally.count("fault: copy held long by another gateway");
            if let Some(pending) = self.clients[client].pending.get_mut(&sequence) {
                pending.copies += 1;
            }
            self.held_copies += 1;
            let delay = self.rng.range(200, 2_000);
            let message = Box::new(message.clone());
            self.at(delay, Happening::Release { client, message });
        }
        if self.rng.chance(2) {
            // Somebody uses the same id for something else, after it was answered or long before it is settled.
            let sequences: Vec<u64> =
                self.clients[client].history.iter().rev().take(3).map(|o| o.sequence).collect();
            if let Some(sequence) = sequences.first() {
                let mut probe = message;
                probe.id.sequence = *sequence;
                probe.created = self.clients[client].stamps.get(sequence).copied().unwrap_or(1);
                probe.after = 0;
                probe.settled = 0;
                probe.kind = Kind::Command;
                probe.method = "add".into();
                probe.body = 777_u64.to_le_bytes().to_vec().into();
                if let Some(o) =
                    self.clients[client].history.iter().rev().find(|o| o.sequence == *sequence)
                    && let Some((kind, id)) = o.entity.split_once('/')
                    && o.command
                    && matches!(o.outcome, ostraca_oracle::Outcome::Final { .. })
                {
                    probe.target = Entity::new(kind, id);
                    probe.digest = Digest::of(&probe.target, "add", &probe.body);
                    self.post(client, true, probe);
                }
            }
        }
        let timeout = self.rng.range(150, 600);
        self.again(timeout, client, sequence);
    }

    /// A client that has its answers may be another session from then on: many are short.
    fn maybe_another(&mut self, client: usize) -> usize {
        let ended = self.clients[client].pending.is_empty() && self.clients[client].last > 0;
        if !ended || !self.rng.chance(30) {
            return client;
        }
        let fresh = self.a_client(self.clients.len());
        self.clients.push(fresh);
        self.clients.len() - 1
    }

    pub(super) fn a_client(&mut self, number: usize) -> Client {
        let skew = if self.rng.chance(60) { 0 } else { self.rng.range(0, 160).cast_signed() - 80 };
        let client = Client::new(number as u64).with(skew, self.options.restamps_in_doubt);
        client.of_forgetful(self.forgetful)
    }

    /// A held copy goes on, to whom its gateway now takes for the owner.
    pub(super) fn release(&mut self, client: usize, message: Box<Message>) {
        self.held_copies -= 1;
        let node = self.owner.map_or(0, |(node, _)| node);
        self.arrive(node, client, false, message);
    }

    pub(super) fn again(&mut self, delay: u64, client: usize, sequence: u64) {
        if let Some(pending) = self.clients[client].pending.get(&sequence) {
            let copies = pending.copies;
            self.at(delay, Happening::Again { client, sequence, copies });
        }
    }

    pub(super) fn post(&mut self, client: usize, probe: bool, message: Message) {
        if self.rng.chance(self.loss) {
            self.tally.count("fault: message lost");
            return;
        }
        let routed = self.owner.map_or(0, |(node, _)| node);
        let node = if self.rng.chance(85) { routed } else { 1 - routed };
        let delay = self.rng.range(1, 30);
        self.at(delay, Happening::Arrive { node, client, probe, message: Box::new(message) });
    }

    pub(super) fn arrive(
        &mut self,
        node: usize,
        client: usize,
        probe: bool,
        mut message: Box<Message>,
    ) {
        let it = &mut self.nodes[node];
        if !it.alive || it.machine.is_none() {
            return;
        }
        if it.paused_until > self.now {
            let delay = it.paused_until - self.now;
            return self.at(delay, Happening::Arrive { node, client, probe, message });
        }
        self.tokens += 1;
        message.token = Token(self.tokens);
        message.arrived = it.mono(self.now);
        message.deadline = message.deadline.map(|patience| message.arrived + patience);
        it.tokens.insert(message.token, (client, message.id.sequence, probe));
        // Copies share a turn: it may start while one of them still waits.
        let latest = self.deadlines.entry((node, message.id)).or_insert(message.deadline);
        *latest = latest.zip(message.deadline).map(|(one, other)| one.max(other));
        self.tell(node, Event::Message(Arc::new(*message)));
    }
}
