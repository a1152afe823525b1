//! `note.*`: short bytes that clients store under a hash.

use crate::dispatch::{Answer, Caller, NOTHING};
use crate::state::content_hash;
use cotensor_client::hex;
use cotensor_client::protocol::{Empty, KeyParams, Note, PutNoteParams};
use cotensor_core::Error;
use cotensor_store::BlobStore;
use cotensor_supervisor::Event;

pub(super) async fn get(caller: Caller, params: KeyParams) -> Answer<Note> {
    let note = caller.daemon.store.get_note(&content_hash(&params.key)?);
    Ok(Note { note: note.map(|bytes| hex::encode(&bytes)) }.into())
}

pub(super) async fn put(caller: Caller, params: PutNoteParams) -> Answer<Empty> {
    let note =
        hex::decode(&params.note).ok_or_else(|| Error::invalid("hexadecimal digits expected").in_field("note"))?;
    caller.daemon.store.put_note(&content_hash(&params.key)?, &note);
    caller.daemon.events.record(Event::NotePut { key: params.key, note: params.note });
    Ok(NOTHING.into())
}
