use super::connection::connect;
use super::embed::offer_library;
use super::endpoint::Endpoint;
use crate::args::{EnvArgs, EnvClients};
use crate::environment::markdown;
use crate::launch::Program;
use crate::output::{print, print_json, report};
use crate::table::{Table, plain};
use cotensor::core::{Error, Result};
use cotensor_client::protocol::{HttpListen, HttpListenParams};
use cotensor_client::settings::{SETTINGS, Setting};
use cotensor_client::token::read_token;
use serde::Serialize;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

#[derive(Serialize)]
struct Listing {
    variables: Vec<Entry>,
}

#[derive(Serialize)]
struct Entry {
    name: &'static str,
    argument: &'static str,
    default: &'static str,
    meaning: &'static str,
    /// The value, with invalid UTF-8 replaced.
    value: Option<String>,
}

/// The JSON object of `env openai`.
#[derive(Serialize)]
struct OpenAi {
    #[serde(rename = "OPENAI_BASE_URL")]
    base_url: String,
    #[serde(rename = "OPENAI_API_KEY")]
    api_key: String,
    #[serde(flatten)]
    endpoint: Endpoint,
}

pub(crate) fn env(args: &EnvArgs, program: &Program) -> Result<()> {
    match args.clients {
        Some(EnvClients::Openai) => openai(args, program),
        None => list(args),
    }
}

/// Prints the variables of clients of OpenAI's API. The address is received over the Unix socket, so that another program that
/// listens on the port gets no key.
fn openai(args: &EnvArgs, program: &Program) -> Result<()> {
    let store = connect(&args.client, program, "cotensor env")?;
    // Clients of HTTP have no installation that could have a library.
    offer_library(&store);
    let http = store.request::<HttpListen>(&HttpListenParams::default())?;
    let file = http.v1_token_file.ok_or_else(|| {
        Error::unsupported("this daemon serves no models; end it, and this command starts one that does")
    })?;
    let endpoint = Endpoint::of(http.address, &file)?;
    let openai =
        OpenAi { base_url: format!("http://{}/v1", local(http.address)), api_key: read_token(&file)?, endpoint };
    if args.client.json {
        return print_json(&openai);
    }
    let OpenAi { base_url, api_key, endpoint } = openai;
    // Not on standard output, which a shell evaluates.
    report(&endpoint.note);
    print(&format!("export OPENAI_BASE_URL={base_url}\nexport OPENAI_API_KEY={api_key}\n"))
}

/// An address that a client on this machine can connect to.
fn local(address: SocketAddr) -> SocketAddr {
    let ip = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    SocketAddr::new(ip, address.port())
}

fn list(args: &EnvArgs) -> Result<()> {
    if args.markdown {
        return print(&markdown());
    }
    let value = |name| std::env::var_os(name).map(|value| value.to_string_lossy().into_owned());
    let entry = |setting: &Setting| {
        let Setting { variable: name, argument, default, meaning } = *setting;
        Entry { name, argument, default, meaning, value: value(name) }
    };
    let listing = Listing { variables: SETTINGS.iter().map(entry).collect() };
    if args.client.json {
        return print_json(&listing);
    }
    let mut table = Table::new(&[], &["variable", "argument", "set to"]);
    for entry in &listing.variables {
        let value = entry.value.as_ref().map_or_else(|| format!("(not set: {})", entry.default), |value| plain(value));
        table.row([entry.name.to_owned(), entry.argument.to_owned(), value]);
    }
    print(&table.text())
}
