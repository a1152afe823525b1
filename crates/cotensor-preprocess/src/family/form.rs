//! The form in which a model has its decoder.

use super::definition::{Family, StageDef, Variant};

impl Family {
    /// The roles of the stages of a task, in order. `has_file` tells which files the model has. If the model has the
    /// decoder in another form than the task names, the roles are those of that form.
    pub fn roles<'a>(
        &'a self,
        stages: &'a [String],
        variant: Option<&Variant>,
        has_file: impl Fn(&str) -> bool,
    ) -> Vec<&'a str> {
        let listed = || stages.iter().map(String::as_str);
        match self.decoder_form(variant, has_file) {
            Some(form)
                if !listed().filter(|role| self.is_of_decoder(role)).all(|role| form.iter().any(|r| r == role)) =>
            {
                listed().filter(|role| !self.is_of_decoder(role)).chain(form.iter().map(String::as_str)).collect()
            }
            _ => listed().collect(),
        }
    }

    /// The stages that a model runs: without those of the decoder's other forms.
    pub fn stages_of_form(
        &self,
        variant: Option<&Variant>,
        has_file: impl Fn(&str) -> bool,
    ) -> impl Iterator<Item = &StageDef> {
        let form = self.decoder_form(variant, has_file);
        self.stages
            .iter()
            .filter(move |stage| !self.is_of_decoder(&stage.role) || form.is_none_or(|form| form.contains(&stage.role)))
    }

    /// Whether a role is a graph of the decoder.
    pub fn is_of_decoder(&self, role: &str) -> bool {
        self.decoder.as_ref().is_some_and(|decoder| decoder.forms.iter().flatten().any(|known| known == role))
    }

    /// The first form of the decoder whose graphs the model has: all in the variant, else in any.
    fn decoder_form(&self, variant: Option<&Variant>, has_file: impl Fn(&str) -> bool) -> Option<&Vec<String>> {
        let find = |variant| {
            let has_graph = |role: &String| self.stage(role).is_ok_and(|stage| stage.has_variant(variant, &has_file));
            let mut forms = self.decoder.iter().flat_map(|decoder| &decoder.forms);
            forms.find(|form| form.iter().all(has_graph))
        };
        find(variant).or_else(|| find(None))
    }
}
