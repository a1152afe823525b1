//! `cotensor stream`: speech from files and pipes.

use crate::support::{Workspace, copy, fixtures};
use serde_json::Value;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Command, Output, Stdio};

const MODELS: [&str; 5] = ["--audio-model", "whisper", "--text-model", "bert", "--json"];

/// A folder with a speech model whose window is two seconds, a text model, and seven seconds of speech.
fn workspace() -> Workspace {
    let workspace = Workspace::with("bert");
    copy(&fixtures().join("sounds/whisper"), &workspace.path("whisper"));
    let clip = fs::read(fixtures().join("media/speech.wav")).unwrap();
    fs::write(workspace.path("speech.wav"), wav(&clip[40_044..40_044 + 112_000])).unwrap();
    workspace
}

/// A file of 16-bit samples at 8 kHz.
fn wav(data: &[u8]) -> Vec<u8> {
    let format =
        [&16u32.to_le_bytes()[..], &[1, 0, 1, 0], &8000u32.to_le_bytes(), &16000u32.to_le_bytes(), &[2, 0, 16, 0]];
    let body = [b"WAVEfmt ", &format.concat()[..], b"data", &(data.len() as u32).to_le_bytes(), data].concat();
    [b"RIFF", &(body.len() as u32).to_le_bytes()[..], &body].concat()
}

fn start(workspace: &Workspace, arguments: &[&str]) -> Child {
    let mut command = workspace.command(&[&["stream"], arguments].concat());
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

/// The output of a command that reads `input` in parts of an odd size.
fn piped(workspace: &Workspace, arguments: &[&str], input: &[u8]) -> Output {
    let mut child = start(workspace, arguments);
    let mut stdin = child.stdin.take().unwrap();
    let input = input.to_vec();
    let writer = std::thread::spawn(move || {
        // The command may end early.
        let _ = input.chunks(1021).try_for_each(|part| stdin.write_all(part));
    });
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap();
    output
}

/// The events but the notices.
fn events(output: &Output) -> Vec<Value> {
    let events = String::from_utf8_lossy(&output.stdout);
    let events = events.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    events.filter(|event| event["event"] != "notice").collect()
}

/// The events without the times of the models.
fn results(output: &Output) -> Vec<Value> {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let mut events = events(output);
    let end = events.pop().unwrap();
    assert_eq!((&end["event"], &end["seconds"]), (&"end".into(), &7.0.into()), "{end}");
    assert!(end["real_time_factor"].as_f64().unwrap() > 0.0);
    events
}

#[test]
fn file_and_pipe_give_the_same_events() {
    let workspace = workspace();
    let speech = fs::read(workspace.path("speech.wav")).unwrap();
    let of_file = results(&workspace.run(&[&["stream", "speech.wav"], &MODELS[..]].concat()));
    let names: Vec<&str> = of_file.iter().map(|event| event["event"].as_str().unwrap()).collect();
    assert!(names.len() >= 4 && names.chunks(2).all(|pair| pair == ["segment", "answer"]), "{names:?}");
    assert_eq!(of_file[1]["answer"]["type"], "embedding");
    assert!(of_file[0]["end"].as_f64() > of_file[0]["start"].as_f64());
    let of_pipe = results(&piped(&workspace, &[&["-"], &MODELS[..]].concat(), &speech));
    assert_eq!(of_pipe, of_file);
    let raw = [&["-", "--format", "s16le", "--rate", "8000"], &MODELS[..]].concat();
    assert_eq!(results(&piped(&workspace, &raw, &speech[44..])), of_file);
    let samples = speech[44..].as_chunks::<2>().0.iter().map(|&bytes| f32::from(i16::from_le_bytes(bytes)) / 32768.0);
    let floats: Vec<u8> = samples.flat_map(f32::to_le_bytes).collect();
    fs::write(workspace.path("speech.f32"), floats).unwrap();
    let raw = [&["stream", "speech.f32", "--format", "f32le", "--rate", "8000"], &MODELS[..]].concat();
    assert_eq!(results(&workspace.run(&raw)), of_file);
    let text = workspace.run(&["stream", "speech.wav", "--audio-model", "whisper", "--text-model", "bert"]);
    let shown = String::from_utf8(text.stdout).unwrap();
    assert!(shown.contains(of_file[0]["text"].as_str().unwrap()) && shown.contains("an embedding"), "{shown}");
}

#[test]
fn results_come_while_the_pipe_is_open_and_interrupt_ends_the_sound() {
    let workspace = workspace();
    let speech = fs::read(workspace.path("speech.wav")).unwrap();
    let mut child = start(&workspace, &[&["-"], &MODELS[..]].concat());
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(&speech[..speech.len() - 1000]).unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap().contains("\"segment\"")));
    // The writer keeps the pipe open.
    let killed = Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(killed.success());
    let last: Value = serde_json::from_str(&lines.last().unwrap().unwrap()).unwrap();
    assert_eq!(last["event"], "end", "{last}");
    assert!(child.wait().unwrap().success());
    drop(stdin);
}

#[test]
fn command_ends_when_its_output_is_closed() {
    let workspace = workspace();
    let speech = fs::read(workspace.path("speech.wav")).unwrap();
    let raw = ["-", "--format", "s16le", "--rate", "8000", "--audio-model", "whisper", "--json"];
    let mut child = start(&workspace, &raw);
    let mut stdin = child.stdin.take().unwrap();
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    // A sound without end.
    let writer = std::thread::spawn(move || while stdin.write_all(&speech[44..]).is_ok() {});
    stdout.read_line(&mut String::new()).unwrap();
    drop(stdout);
    assert!(child.wait().unwrap().success());
    writer.join().unwrap();
    let mut complaint = String::new();
    child.stderr.take().unwrap().read_to_string(&mut complaint).unwrap();
    assert!(complaint.is_empty(), "{complaint}");
}

#[test]
fn bad_sounds_are_errors_after_what_arrived() {
    let workspace = workspace();
    let speech = fs::read(workspace.path("speech.wav")).unwrap();
    let arguments = [&["-"], &MODELS[..]].concat();
    let cut = piped(&workspace, &arguments, &speech[..speech.len() - 20_000]);
    let complaint = String::from_utf8_lossy(&cut.stderr);
    assert_eq!(cut.status.code(), Some(2), "{complaint}");
    assert!(complaint.contains("truncated") && complaint.contains("20000 bytes"), "{complaint}");
    assert_eq!(events(&cut)[0]["event"], "segment");
    for (input, name) in [
        (&b""[..], "truncated"),
        (&speech[..30], "truncated"),
        (&speech[..44], "truncated"),
        (b"not a sound at all", "WAV"),
    ] {
        let output = piped(&workspace, &arguments, input);
        let complaint = String::from_utf8_lossy(&output.stderr);
        assert_eq!((output.status.code(), output.stdout.len()), (Some(2), 0), "{complaint}");
        assert!(complaint.contains(name) && !complaint.contains("panicked"), "{complaint}");
    }
    let nan = [&["-", "--format", "f32le", "--rate", "8000"], &MODELS[..]].concat();
    let output = piped(&workspace, &nan, &f32::NAN.to_le_bytes());
    assert!(String::from_utf8_lossy(&output.stderr).contains("sample 0"), "{output:?}");
    let empty = piped(&workspace, &nan, b"");
    assert!(String::from_utf8_lossy(&empty.stderr).contains("empty"), "{empty:?}");
    let expect =
        |more: &[&str], names: &[&str]| workspace.expect_error(&[&["stream"], more, &MODELS[..]].concat(), names);
    expect(&["-", "--format", "s16le", "--rate", "0"], &["--rate", "0 Hz"]);
    expect(&["-", "--format", "s16le"], &["--rate"]);
    expect(&["-", "--rate", "8000"], &["--format"]);
    expect(&["speech.wav", "--rate", "8000"], &["--rate"]);
    expect(&["absent.wav"], &["absent.wav"]);
    expect(&["speech.wav", "--window", "9"], &["--window"]);
    expect(&["speech.wav", "--text-task", "transcription"], &["--text-task"]);
    workspace.expect_error(&["stream", "speech.wav", "--audio-model", "bert"], &["--audio-model", "Whisper"]);
}
