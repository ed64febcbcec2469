package agentapi

// ConsolePrefix begins what the agent says in a line of its machine's console, behind the time since the
// kernel started, which is in the kernel's form: "[    2.439454] kip: …".
const ConsolePrefix = "kip: "
