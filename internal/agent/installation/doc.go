// Package installation makes a Linux with systemd a machine that cells can run on: it
// says what that Linux lacks, puts the agent's files and its unit in place, and takes
// them back. It starts nothing, and changes nothing that is not its own.
package installation
