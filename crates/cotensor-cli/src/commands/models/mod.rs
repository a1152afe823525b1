//! `models`: the models of this machine.

mod cached;
mod families;
mod loaded;

use crate::args::{ModelsAction, ModelsArgs};
use crate::launch::Program;
use cotensor::core::Result;

pub(crate) fn models(args: &ModelsArgs, program: &Program) -> Result<()> {
    match &args.action {
        ModelsAction::Ls { json } => cached::list(*json),
        ModelsAction::Ps { client } => loaded::list(client),
        ModelsAction::Load(args) => loaded::load(args, program),
        ModelsAction::Unload { client, model, .. } => loaded::unload(client, model.as_deref()),
        ModelsAction::Families { json } => families::families(*json),
    }
}
