// Runs test programs that cargo built for wasm32-unknown-unknown: `node scripts/test_wasm.mjs PROGRAM…`.
//
// The target has no standard output. A failed test traps, and the stack trace names it. Counts the tests in the program's
// name section, so that a program without tests fails.
import { readFile } from "node:fs/promises";
import { basename } from "node:path";

// The harness passes each test as a closure in the test's function: `_RNC` in Rust's v0 symbol names, or its `call_once`,
// `_RNvYNC`, of which an optimized program has no more. The function is in a module `tests` or a program `integration`.
const TEST_CLOSURE = /_R(NvY)?NCNv[0-9A-Za-z_]*(5tests|11integration)/;

/** The number of tests. A test is a function and a constant of one path: the function has a disambiguator, `s_`, the closure not. */
function countTests(functions) {
  const paths = new Set(functions.map((name) => name.match(/^_R(Nv.*)s_(\d.*)$/)).filter(Boolean).map(([, path, name]) => path + name));
  const closures = functions.filter((name) => TEST_CLOSURE.test(name));
  const plain = closures.filter((name) => paths.has(name.match(/^_RNC(.*)0B[0-9A-Za-z]*_$/)?.[1]));
  return plain.length || closures.filter((name) => /^_RNvYNC.*0I.*6FnOnceuE9call_once/.test(name)).length;
}

/** The names of the functions, from the custom section "name", subsection 1. */
function functionNames(module) {
  const [section] = WebAssembly.Module.customSections(module, "name");
  if (!section) return [];
  const bytes = new Uint8Array(section);
  let at = 0;
  const number = () => {
    for (let value = 0, shift = 0; ; shift += 7) {
      const byte = bytes[at++];
      value += (byte & 0x7f) * 2 ** shift;
      if (byte < 0x80) return value;
    }
  };
  const names = [];
  while (at < bytes.length) {
    const kind = bytes[at++];
    const end = number() + at;
    if (kind === 1) {
      for (let count = number(); count > 0; count--) {
        number();
        const length = number();
        names.push(new TextDecoder().decode(bytes.subarray(at, at + length)));
        at += length;
      }
    }
    at = end;
  }
  return names;
}

// The default of ten frames does not reach from the trap to the test.
Error.stackTraceLimit = 60;
const programs = process.argv.slice(2);
if (programs.length === 0) throw new Error("no test program is given");
for (const program of programs) {
  const module = await WebAssembly.compile(await readFile(program));
  const missing = WebAssembly.Module.imports(module).map(({ module, name }) => `${module}.${name}`);
  if (missing.length > 0) throw new Error(`${program}: imports ${missing.join(", ")}, which a browser does not have`);
  const tests = countTests(functionNames(module));
  if (tests === 0) throw new Error(`${program}: no tests`);
  const { exports } = await WebAssembly.instantiate(module);
  let status;
  try {
    status = exports.main(0, 0);
  } catch (trap) {
    const test = trap.stack.split("\n").find((line) => TEST_CLOSURE.test(line)) ?? trap.stack;
    throw new Error(`${program}: a test failed: ${test.trim()}`);
  }
  if (status !== 0) throw new Error(`${program}: status ${status}`);
  console.log(`${basename(program)}: ${tests} tests passed`);
}
