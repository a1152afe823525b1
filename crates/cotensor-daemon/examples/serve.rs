//! A daemon inside another program, with its Unix socket and HTTP.
//!
//!     cargo run -p cotensor-daemon --example serve -- /tmp/example.sock [ADDRESS [TOKEN-FILE]]
//!
//! Prints the address; the default is 127.0.0.1 with a free port. The daemon runs until standard input ends.

use cotensor_daemon::http::{HttpConfig, HttpListening};
use cotensor_daemon::{Config, Daemon, Listening};
use tokio::sync::watch;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let socket = arguments.next().ok_or("a path for the socket is required")?;
    let listen = arguments.next().unwrap_or_else(|| "127.0.0.1:0".to_owned()).parse()?;
    let token_file = arguments.next().map(Into::into);

    let config = Config { socket: socket.into(), ..Config::default() };
    let mut unix = Listening::bind(&config.socket)?;
    let http = HttpListening::bind(HttpConfig { listen, token_file, ..HttpConfig::default() }, &config.socket)?;
    println!("http://{}", http.address());

    let (stop, stopped) = watch::channel(());
    std::thread::spawn(move || {
        let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
        drop(stop);
    });
    let ended = || {
        let mut stopped = stopped.clone();
        async move { while stopped.changed().await.is_ok() {} }
    };
    let daemon = Daemon::new(config)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async { tokio::try_join!(daemon.serve(&mut unix, ended()), daemon.serve_http(http, ended())) })?;
    Ok(())
}
