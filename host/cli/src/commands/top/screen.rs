//! The live view on a terminal.

use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ostraca_client::Client;
use ostraca_codes::codes;
use ostraca_wasm::text::printable;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Style, Stylize};
use ratatui::text::Line;
use ratatui::widgets::{Block, Row, Table};
use ratatui::{DefaultTerminal, Frame};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

use super::rates::View;
use super::{Sampler, next_figures, text};
use crate::failure::Failure;

/// Keyboard polling interval.
const KEYS: Duration = Duration::from_millis(100);
/// Space between columns.
const SPACE: u16 = 2;

/// What the user does.
enum Input {
    Quit,
    /// The window has another size.
    Resized,
}

/// Shows one view after the other, until the user quits.
pub(super) async fn run(client: &Client, interval: Duration) -> Result<(), Failure> {
    let mut sampler = Sampler::default();
    let mut view = sampler.sample(client.figures().await?);
    let mut ended = signal(SignalKind::terminate()).map_err(|error| lost(&error))?;
    let mut hung_up = signal(SignalKind::hangup()).map_err(|error| lost(&error))?;
    // Restores the terminal, whatever happens from here on.
    let _restore = Restore;
    let mut terminal = ratatui::try_init().map_err(|error| lost(&error))?;
    let mut keys = Keyboard::start();
    let mut problem = None;
    let mut next = pin!(next_figures(client, interval));
    loop {
        draw(&mut terminal, &view, problem.as_deref())?;
        tokio::select! {
            input = keys.inputs.recv() => match input {
                Some(Input::Resized) => {}
                Some(Input::Quit) | None => return Ok(()),
            },
            _ = ended.recv() => return Ok(()),
            _ = hung_up.recv() => return Ok(()),
            figures = next.as_mut() => {
                next.set(next_figures(client, interval));
                match figures {
                    Ok(figures) => {
                        view = sampler.sample(figures);
                        problem = None;
                    }
                    // The client finds another node.
                    Err(error) => problem = Some(error.to_string()),
                }
            }
        }
    }
}

fn lost(error: &io::Error) -> Failure {
    Failure::unexpected(codes::OUTPUT_WRITE_FAILED, format!("cannot use the terminal: {error}"))
        .help("`ostraca top --once` prints one view as text")
}

fn draw(terminal: &mut DefaultTerminal, view: &View, problem: Option<&str>) -> Result<(), Failure> {
    let drawn = terminal.draw(|frame| show(frame, view, problem));
    drawn.map(drop).map_err(|error| lost(&error))
}

struct Restore;

impl Drop for Restore {
    fn drop(&mut self) {
        ratatui::restore();
    }
}

/// Reads the keyboard on a thread of its own.
struct Keyboard {
    inputs: mpsc::UnboundedReceiver<Input>,
    ended: Arc<AtomicBool>,
}

impl Keyboard {
    fn start() -> Self {
        let (send, inputs) = mpsc::unbounded_channel();
        let ended = Arc::<AtomicBool>::default();
        let stop = ended.clone();
        std::thread::spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                let input = match event::poll(KEYS) {
                    Ok(false) => continue,
                    Ok(true) => event::read().ok(),
                    Err(_) => None,
                };
                let input = match input {
                    // The terminal has gone.
                    None => Input::Quit,
                    Some(Event::Resize(..)) => Input::Resized,
                    Some(event) if quits(&event) => Input::Quit,
                    Some(_) => continue,
                };
                if send.send(input).is_err() {
                    return;
                }
            }
        });
        Self { inputs, ended }
    }
}

impl Drop for Keyboard {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
    }
}

fn quits(event: &Event) -> bool {
    let Event::Key(key) = event else { return false };
    let control_c = key.code == KeyCode::Char('c') && key.modifiers.contains(KeyModifiers::CONTROL);
    key.kind == KeyEventKind::Press
        && (control_c || matches!(key.code, KeyCode::Char('q') | KeyCode::Esc))
}

/// Draws a view. The nodes get the space that they need, the others share the rest.
fn show(frame: &mut Frame<'_>, view: &View, problem: Option<&str>) {
    let nodes = u16::try_from(view.nodes.len() + view.unresponsive.len()).unwrap_or(u16::MAX);
    let [title, top, middle, bottom] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Max(nodes.saturating_add(3)),
        Constraint::Fill(1),
        Constraint::Fill(1),
    ])
    .areas(frame.area());
    let heading = match problem {
        Some(why) => Line::from(format!("{}   (q: quit)", printable(why))).bold().reversed(),
        None => {
            let count = view.nodes.len();
            let nodes = if count == 1 { "node" } else { "nodes" };
            Line::from(format!("{count} {nodes}, {:.0} messages/s   (q: quit)", view.messages()))
        }
    };
    frame.render_widget(heading, title);
    let mut rows: Vec<_> = view.nodes.iter().map(|row| text::node(row).to_vec()).collect();
    rows.extend(
        view.unresponsive
            .iter()
            .map(|it| vec![it.node.clone(), format!("did not report: {}", it.reason)]),
    );
    frame.render_widget(table("Nodes", &text::NODES, &rows), top);
    let rows: Vec<_> = view.methods.iter().map(|row| text::method(row).to_vec()).collect();
    frame.render_widget(table("Slowest methods", &text::METHODS, &rows), middle);
    let rows: Vec<_> = view.hottest.iter().map(|row| text::hot(row).to_vec()).collect();
    frame.render_widget(table("Hottest entities", &text::HOTTEST, &rows), bottom);
}

/// A table whose columns are as wide as what is in them.
fn table<'a>(title: &'a str, headers: &[&'a str], rows: &[Vec<String>]) -> Table<'a> {
    let rows: Vec<Vec<String>> = rows
        .iter()
        .map(|row| row.iter().map(|cell| printable(cell).into_owned()).collect())
        .collect();
    let width = |at: usize| {
        let cells = rows.iter().filter_map(|row| row.get(at));
        let widest = cells.map(|cell| cell.chars().count()).max().unwrap_or(0);
        Constraint::Length(u16::try_from(widest.max(headers[at].len())).unwrap_or(u16::MAX))
    };
    let widths: Vec<_> = (0..headers.len()).map(width).collect();
    Table::new(rows.into_iter().map(Row::new), widths)
        .header(Row::new(headers.to_vec()).style(Style::new().bold()))
        .column_spacing(SPACE)
        .block(Block::bordered().title(title))
}

#[cfg(test)]
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use ratatui::crossterm::event::KeyEvent;

    use super::super::rates::{HotRow, MethodRow, NodeRow, Unresponsive};
    use super::*;

    fn drawn(view: &View, problem: Option<&str>, (width, height): (u16, u16)) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).expect("a terminal");
        terminal.draw(|frame| show(frame, view, problem)).expect("drawn");
        terminal.backend().to_string()
    }

    fn view() -> View {
        let node = NodeRow { node: "n1".into(), messages: 1_234.0, ..NodeRow::default() };
        let method = MethodRow {
            entity_type: "cart".into(),
            method: "add".into(),
            p99_ms: 12.0,
            ..MethodRow::default()
        };
        let hot = HotRow { entity: "cart/a\u{1b}[31m".into(), turns: 77, node: "n1".into() };
        let absent = Unresponsive { node: "n2".into(), reason: "no connection".into() };
        View {
            nodes: vec![node],
            methods: vec![method],
            hottest: vec![hot],
            unresponsive: vec![absent],
        }
    }

    #[test]
    fn the_screen_shows_nodes_methods_and_entities() {
        let screen = drawn(&view(), None, (110, 20));
        for text in [
            "1 node, 1234 messages/s",
            "n2    did not report: no connection".split("    ").next().expect("a name"),
            "cart  add",
            "12 ms",
            "77",
            "Slowest methods",
            "Hottest entities",
        ] {
            assert!(screen.contains(text), "{text}\n{screen}");
        }
        assert!(!screen.contains('\u{1b}'), "an entity's name moves nothing\n{screen}");
        let screen = drawn(&view(), Some("the connection was lost"), (110, 20));
        assert!(screen.contains("the connection was lost"), "{screen}");
    }

    #[test]
    fn a_small_window_shows_what_fits() {
        for size in [(1, 1), (20, 3), (40, 8)] {
            drawn(&view(), None, size);
        }
    }

    #[test]
    fn q_escape_and_control_c_quit() {
        let key = |code, modifiers| Event::Key(KeyEvent::new(code, modifiers));
        let quitting = [
            key(KeyCode::Char('q'), KeyModifiers::NONE),
            key(KeyCode::Esc, KeyModifiers::NONE),
            key(KeyCode::Char('c'), KeyModifiers::CONTROL),
        ];
        assert!(quitting.iter().all(quits));
        let others = [
            key(KeyCode::Char('c'), KeyModifiers::NONE),
            key(KeyCode::Enter, KeyModifiers::NONE),
            Event::Resize(1, 1),
        ];
        assert!(!others.iter().any(quits));
    }
}
