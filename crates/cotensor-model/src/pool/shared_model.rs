//! The model API of docs/reference/api-names.md: a model keeps the tensors of its last input for other models, and takes theirs.

use super::resource_pool::{PooledModel, PooledResult};
use crate::pipeline::{Inputs, OnText, SharedEmbedding, User, task_of_inputs};
use cotensor_core::{Error, ErrorKind, Kind, Result};
use cotensor_preprocess::TokenBatch;
use cotensor_sharing::SharedTensor;
use std::collections::BTreeMap;
use std::sync::Arc;

impl PooledModel {
    /// The name of the model in the pool, which holds its tensors.
    pub fn name(&self) -> &str {
        &self.held.holder
    }

    /// Loads the graphs that the tasks without a head need, as far as the model has them. Without this call, each graph is
    /// loaded at its first use.
    ///
    /// # Errors
    /// `NotFound` when the folder has none of them; as [`Model::stage`](crate::model::Model::stage).
    pub fn initialize(&self) -> Result<()> {
        let model = self.model();
        let tasks = model.family().tasks().filter(|task| !task.head);
        let mut roles: Vec<&str> = tasks.map(|task| model.roles(task)).collect::<Result<Vec<_>>>()?.concat();
        roles.sort_unstable();
        roles.dedup();
        let (mut loaded, mut missing) = (0, None);
        for role in &roles {
            match model.stage(role) {
                Ok(_) => loaded += 1,
                Err(error) if error.kind() == ErrorKind::NotFound => missing = missing.or(Some(error)),
                Err(error) => return Err(error),
            }
        }
        missing.filter(|_| loaded == 0).map_or(Ok(()), Err)
    }

    /// The tokens of a text, as the model reads them.
    ///
    /// # Errors
    /// As [`TextProcessor::encode`](cotensor_preprocess::TextProcessor::encode); `NotFound` for a model without a tokenizer.
    pub fn tokenize(&self, text: &str) -> Result<TokenBatch> {
        self.model().text()?.encode(&[text])
    }

    /// A user of the task that reads exactly what `inputs` has ([`task_of_inputs`]).
    ///
    /// # Errors
    /// As [`task_of_inputs`].
    pub fn user_of(&self, inputs: &Inputs) -> Result<User> {
        let mut user = User { name: self.name().to_owned(), model: self.model().name(), ..User::default() };
        self.choose_task(&mut user, inputs)?;
        Ok(user)
    }

    /// Gives a user the task that reads exactly what `inputs` and the user's texts are ([`task_of_inputs`]). A text that a decoder
    /// continues becomes the user's.
    ///
    /// # Errors
    /// As [`task_of_inputs`].
    pub fn choose_task(&self, user: &mut User, inputs: &Inputs) -> Result<()> {
        let task = task_of_inputs(self.model(), inputs, &user.texts)?;
        user.task.clone_from(&task.name);
        if task.begins && user.texts.is_empty() {
            user.texts.extend(inputs.text().ok().map(str::to_owned));
        }
        Ok(())
    }

    /// Runs the task of `user` on `inputs` under the model's name, and keeps the outputs of its stages for
    /// [`get_shared_tensor`](Self::get_shared_tensor). The outputs of the input before are released. A notice names each input
    /// that the task does not read.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    pub fn process(&self, user: &User, inputs: &Inputs) -> Result<PooledResult> {
        let processed = self.process_while(user, inputs, &|| true, &mut |_| Ok(()))?;
        processed.ok_or_else(|| Error::new(ErrorKind::Conflict, "the wait for a connection ended"))
    }

    /// As [`process`](Self::process); waits and gives the text as [`run_streaming_while`](Self::run_streaming_while) does.
    ///
    /// # Errors
    /// As [`process`](Self::process).
    pub fn process_while(
        &self,
        user: &User,
        inputs: &Inputs,
        wanted: &dyn Fn() -> bool,
        on_text: &mut OnText<'_>,
    ) -> Result<Option<PooledResult>> {
        let user = User { name: self.name().to_owned(), ..user.clone() };
        let Some(mut result) = self.run_streaming_while(&user, inputs, wanted, on_text)? else { return Ok(None) };
        let family = self.model().family();
        let task = family.task(&user.task)?;
        let unread = inputs.media().into_iter().filter(|medium| !family.reads(task, *medium));
        result.report.notices.extend(unread.map(|medium| format!("{} reads no {medium}", task.name)));
        let mut made = BTreeMap::new();
        for lease in result.output_tensors.values() {
            let tensor = SharedTensor::of_lease(Arc::clone(self.runtime.store()), lease.try_clone()?);
            made.insert(tensor.kind(), SharedEmbedding::made_by(self.model(), inputs, tensor));
        }
        self.held.set_made(made);
        Ok(Some(result))
    }

    /// As [`process`](Self::process), with tensors of other models in place of the outputs of this model's own stages.
    ///
    /// # Errors
    /// As [`Inputs::with_embedding`].
    pub fn process_with_shared_embeddings(
        &self,
        user: &User,
        inputs: &Inputs,
        embeddings: &[SharedEmbedding],
    ) -> Result<PooledResult> {
        self.process(user, &self.with_embeddings(inputs, embeddings)?)
    }

    /// The inputs with tensors of other models.
    ///
    /// # Errors
    /// As [`Inputs::with_embedding`].
    pub fn with_embeddings(&self, inputs: &Inputs, embeddings: &[SharedEmbedding]) -> Result<Inputs> {
        let with = |inputs: Inputs, embedding| inputs.with_embedding(embedding, self.model(), self.name());
        embeddings.iter().try_fold(inputs.clone(), with)
    }

    /// The tensor of this kind that the model made of its last input. The model holds it until it processes another input.
    ///
    /// # Errors
    /// `NotFound` for a kind that the model did not make; the message lists those that it made.
    pub fn get_shared_tensor(&self, kind: Kind) -> Result<SharedEmbedding> {
        self.held.made(kind)
    }

    /// Acquires a tensor once more for the model.
    ///
    /// # Errors
    /// As [`SharedTensor::acquire`].
    pub fn use_shared_tensor(&self, tensor: &SharedTensor) -> Result<()> {
        self.held.acquire(tensor)
    }

    /// Releases one acquire of the model.
    ///
    /// # Errors
    /// As [`SharedTensor::release`].
    pub fn release_shared_tensor(&self, tensor: &SharedTensor) -> Result<()> {
        self.held.release(tensor)
    }

    /// Releases every tensor that the model holds. The last clone of the model does so, too.
    pub fn dispose(&self) {
        self.held.release_all();
    }
}
