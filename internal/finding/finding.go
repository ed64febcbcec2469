// Package finding owns the words in which a check says what it found. It asks nothing and nobody.
package finding

import (
	"context"
	"fmt"
)

// Outcome is what a check came to.
type Outcome string

// Outcomes.
const (
	OK      Outcome = "ok"
	Failed  Outcome = "failed"
	Warning Outcome = "warning"
	// NotChecked is for what could not be asked. It says neither that something works nor that it does not.
	NotChecked Outcome = "not checked"
)

// Finding is one thing that a check found.
type Finding struct {
	Outcome Outcome `json:"outcome"`
	Message string  `json:"message"`
	// Cure is the command that fixes a failure, does away with a warning, or checks what was not checked. Of several each has a line, in
	// their order. Words in capitals stand for what the reader fills in.
	Cure string `json:"cure,omitempty"`
	// Subnet is the subnet of cells that it is about; zero if it is about something else.
	Subnet Subnet `json:"subnet,omitzero"`
}

// Subnet is where cells are launched.
type Subnet struct {
	ID   string `json:"id"`
	Zone string `json:"zone"`
	// Public says that its way to the internet is for public addresses alone.
	Public bool `json:"public"`
}

// Fine says that something works.
func Fine(format string, args ...any) Finding {
	return Finding{Outcome: OK, Message: fmt.Sprintf(format, args...)}
}

// Fail says that something does not work, and which command fixes it.
func Fail(cure, format string, args ...any) Finding {
	return Finding{Outcome: Failed, Message: fmt.Sprintf(format, args...), Cure: cure}
}

// Warn says that something may not work later, or not for all, and which command changes that.
func Warn(cure, format string, args ...any) Finding {
	return Finding{Outcome: Warning, Message: fmt.Sprintf(format, args...), Cure: cure}
}

// Unchecked says what could not be asked, and why.
func Unchecked(format string, args ...any) Finding {
	return Finding{Outcome: NotChecked, Message: fmt.Sprintf(format, args...)}
}

// DryRun is the name of the check that asks a cloud whether it would launch an instance of a type.
const DryRun = "dry run"

// Check asks one question.
type Check struct {
	// Area is what it is about: "cluster", "account", "kip".
	Area, Name string
	// Needs is the name of an earlier check of the area without whose success this one says nothing. Optional.
	Needs string
	// Run asks. It changes nothing, and returns promptly when ctx ends.
	Run func(ctx context.Context) []Finding
}

// Kip is what is known of the Kip whose account is checked. Whoever asks need not be that Kip.
type Kip struct {
	// Owner is its controller ID, which the tags of its cells have; "" if there is none yet.
	Owner string
	// Role is the ARN of its role, or of its user; "" if none is known.
	Role string
	// Inside reports whether the question comes from within its pod, and so with its rights.
	Inside bool
	// Ask is the command that asks from within its pod; "" if there is none.
	Ask string
}
