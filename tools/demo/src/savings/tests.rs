use super::*;
use cotensor::model::pipeline::{Answer, Output};

fn part(role: &str, signature: &str, load_ms: f64, run_ms: f64) -> StageReport {
    let (role, signature) = (role.to_owned(), signature.to_owned());
    StageReport { role, signature, space: None, computed: true, load_ms, run_ms, cache_copied_bytes: 0 }
}

fn user(name: &str, prepared: Vec<StageReport>, stages: Vec<StageReport>) -> UserReport {
    UserReport {
        user: name.to_owned(),
        task: "task".to_owned(),
        model: "model".to_owned(),
        answer: Answer::Embedding { width: 2 },
        outputs: vec![Output { name: "embedding".to_owned(), shape: vec![2], values: vec![1.0, 2.0] }],
        prepared,
        stages,
        report_ms: 0.0,
        notices: vec![],
        constants: vec![],
    }
}

fn report(time_ms: f64, users: Vec<UserReport>) -> WorkerReport {
    let open_ms = users.iter().map(|_| 1.0).collect();
    WorkerReport {
        time_ms,
        pss_bytes: 1,
        users,
        open_ms,
        weights: None,
        fits: Vec::new(),
        continued: Vec::new(),
        mapped_resident_bytes: None,
    }
}

/// Two users of one encoder with different heads.
fn without() -> WorkerReport {
    let of = |name: &str, head: &str| {
        let prepared = vec![part("tokenizer", "tokenizer", 20.0, 0.0), part("text", "text:a", 0.0, 2.0)];
        let stages = vec![part("encoder", "encoder:x", 100.0, 50.0), part(head, head, 4.0, 3.0)];
        user(name, prepared, stages)
    };
    report(400.0, vec![of("a", "head.a"), of("b", "head.b")])
}

fn mapped() -> WorkerReport {
    let mut mapped = without();
    for stage in mapped.users.iter_mut().flat_map(|user| &mut user.stages) {
        stage.load_ms = 5.0;
    }
    mapped
}

#[test]
fn only_repeated_work_is_avoidable() {
    let (without, mapped) = (without(), mapped());
    let avoidable = Avoidable::of(&without, &[(&without, &mapped)], &[]);
    // The second encoder; 100 ms of the first one minus 5 ms with mapping; the heads differ, and 4 minus 5 is bounded
    // by zero.
    let expected = Avoidable {
        load_again_ms: 100.0,
        first_read_ms: 95.0,
        run_again_ms: 50.0,
        prepare_again_ms: 20.0 + 2.0 + 1.0,
        replaced_ms: 0.0,
    };
    assert_eq!(avoidable, expected);
    assert_eq!(avoidable.total_ms(), 268.0);
}

#[test]
fn page_faults_while_running_are_subtracted() {
    let (without, mut mapped, mut other) = (without(), mapped(), mapped());
    mapped.users[0].stages[0].run_ms += 10.0;
    other.users[0].stages[0].run_ms += 1000.0;
    let first_read_ms = |rounds: &[(&WorkerReport, &WorkerReport)]| Avoidable::of(&without, rounds, &[]).first_read_ms;
    assert_eq!(first_read_ms(&[(&without, &mapped)]), 85.0);
    // The median of the rounds counts, bounded by zero.
    assert_eq!(first_read_ms(&[(&without, &mapped), (&without, &other), (&without, &mapped)]), 85.0);
    assert_eq!(first_read_ms(&[(&without, &other)]), 0.0);
}

#[test]
fn same_role_on_other_input_is_not_repeated_work() {
    let mut without = without();
    without.users[1].stages[0].signature = "encoder:y".to_owned();
    let avoidable = Avoidable::of(&without, &[], &[]);
    assert_eq!((avoidable.load_again_ms, avoidable.run_again_ms), (100.0, 0.0));
}

#[test]
fn parts_add_up_to_the_time() {
    let parts = TimeParts::of(&without());
    assert_eq!(parts, TimeParts { load_ms: 208.0, run_ms: 106.0, prepare_ms: 46.0, other_ms: 40.0 });
    let saved = parts.minus(TimeParts { load_ms: 8.0, ..TimeParts::default() });
    assert_eq!((saved.load_ms, saved.computation_ms()), (200.0, 152.0));
}

#[test]
fn efficiency_is_one_without_avoidable_work() {
    assert_eq!(efficiency(50.0, 100.0), 0.5);
    assert_eq!(efficiency(-3.0, 0.0), 1.0);
}

#[test]
fn incomparable_outputs_are_an_error() {
    let base = without().users;
    let changed = |change: fn(&mut UserReport)| {
        let mut users = base.clone();
        change(&mut users[1]);
        // Equal runs before and after do not hide the difference.
        max_abs_diff(&base, [&base[..], &users, &base])
    };
    assert_eq!(changed(|_| ()).unwrap(), 0.0);
    assert_eq!(changed(|user| user.outputs[0].values[1] = 2.5).unwrap(), 0.5);
    for change in [
        |user: &mut UserReport| user.outputs.clear(),
        |user: &mut UserReport| user.outputs[0].values.truncate(1),
        |user: &mut UserReport| user.outputs[0].shape = vec![1, 2],
        |user: &mut UserReport| user.outputs[0].name = "logits".to_owned(),
        |user: &mut UserReport| user.outputs[0].values[0] = f32::NAN,
    ] {
        let error = changed(change).unwrap_err();
        assert!(error.kind() == ErrorKind::Engine && error.to_string().contains('b'), "{error}");
    }
    assert!(max_abs_diff(&base, [&base[..1]]).is_err());
}

#[test]
fn encoder_that_an_adapter_replaces_is_avoidable() {
    let without = without();
    let avoidable = Avoidable::of(&without, &[], &[("b", "encoder")]);
    assert_eq!((avoidable.replaced_ms, avoidable.load_again_ms, avoidable.run_again_ms), (150.0, 0.0, 0.0));
}

#[test]
fn graphs_of_one_decoding_do_not_repeat_each_other() {
    let stages = vec![part("decoder", "decoding:a", 10.0, 0.0), part("decoder_with_past", "decoding:a", 10.0, 300.0)];
    let without = report(400.0, vec![user("a", vec![], stages)]);
    assert_eq!(Avoidable::of(&without, &[], &[]).total_ms(), 0.0);
}

#[test]
fn encoder_in_a_whole_graph_has_the_time_that_the_rest_does_not_need() {
    let of = |stages| report(100.0, vec![user("a", vec![], vec![]), user("b", vec![], stages)]);
    let without = of(vec![part("detector", "whole", 10.0, 60.0)]);
    let with = of(vec![part("adapter of encoder", "adapter", 0.0, 1.0), part("detector", "rest", 4.0, 15.0)]);
    let replaced = [("b", "encoder")];
    let avoidable = Avoidable::of(&without, &[], &replaced).and_parts_of_graphs(&without, &with, &replaced);
    assert_eq!(avoidable.replaced_ms, 50.0);
    let own = Avoidable::default().and_parts_of_graphs(&without, &with, &[("b", "detector")]);
    assert_eq!(own.replaced_ms, 0.0, "a stage of its own is counted by its own time");
}
