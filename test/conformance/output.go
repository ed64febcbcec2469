package main

import (
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// outcome is one spec's end as ginkgo tells it.
type outcome struct {
	spec string
	Attempt
}

// reader understands what ginkgo prints with -v, line by line, as it is printed:
// its reports are written at the end only, which a killed run never reaches.
type reader struct {
	known []string // the specs, of which only these are told
	tell  func(outcome)

	afterDelimiter bool
	begun          string   // the spec that runs, where one runs at a time
	underWay       []string // those that have begun and not ended, as far as ginkgo said so
	ended          *outcome // whose text is read
	header         bool     // the line before was ended's header
	failure        []string
	inFailure      bool
}

var (
	// • [FAILED] [1.234 seconds], or S [SKIPPED] [0.1 seconds].
	header = regexp.MustCompile(`^(?:•|S|P|↺) ?(?:\[([A-Z ]+)\] )?\[([0-9.]+) seconds\]$`)
	// What ginkgo puts into the text of a spec where it failed.
	whereFailed = regexp.MustCompile(`\[(?:It|BeforeEach|AfterEach|JustBeforeEach|JustAfterEach|BeforeAll|AfterAll|DeferCleanup(?: \([A-Za-z]+\))?)\] `)
	failureLine = regexp.MustCompile(`^  \[(?:FAILED|TIMEDOUT|PANICKED|INTERRUPTED|ABORTED|SKIPPED)\] ?(.*)$`)
)

// runs ends the name of a spec that runs, in the reports of progress that ginkgo gives
// when it is asked: with several at once it says nothing when one begins.
const runs = " (Spec Runtime: "

const delimiter = "------------------------------"

// maxFailure bounds what is kept of a failure's text, in bytes.
const maxFailure = 1500

// spec finds the known spec whose text a line is; labels follow its name.
func (r *reader) spec(line string) string {
	line = whereFailed.ReplaceAllString(strings.TrimPrefix(line, "TOP-LEVEL "), "")
	best := ""
	for _, s := range r.known {
		if len(s) > len(best) && strings.HasPrefix(line, s) {
			best = s
		}
	}
	return best
}

// line reads the next line.
func (r *reader) line(line string) {
	line = strings.TrimRight(line, "\r\n")
	if line == delimiter {
		r.end()
		r.afterDelimiter = true
		return
	}
	if name, _, reports := strings.Cut(line, runs); reports {
		if s := r.spec(strings.TrimSpace(name)); s != "" {
			r.begin(s)
			return
		}
	}
	afterDelimiter := r.afterDelimiter
	r.afterDelimiter = false
	if m := header.FindStringSubmatch(line); m != nil {
		r.end()
		seconds, _ := strconv.ParseFloat(m[2], 64) // the expression lets only numbers pass
		state := strings.ToLower(strings.TrimSuffix(m[1], "!"))
		if state == "" {
			state = passed
		}
		r.ended, r.header = &outcome{spec: r.begun, Attempt: Attempt{State: state, Seconds: seconds}}, true
		return
	}
	if r.ended == nil {
		if s := r.spec(line); afterDelimiter && s != "" {
			r.begun = s
			r.begin(s)
		}
		return
	}
	if r.header {
		r.header = false
		r.ended.spec = r.spec(line)
		return
	}
	if m := failureLine.FindStringSubmatch(line); m != nil {
		r.failure, r.inFailure = []string{m[1]}, true
		return
	}
	if strings.HasPrefix(line, "  In [") {
		r.inFailure = false
	}
	if r.inFailure {
		r.failure = append(r.failure, strings.TrimSpace(line))
	}
}

func (r *reader) begin(spec string) {
	if !slices.Contains(r.underWay, spec) {
		r.underWay = append(r.underWay, spec)
	}
}

// end tells of the spec that has ended, if one has.
func (r *reader) end() {
	if r.ended != nil && r.ended.spec != "" {
		if text := strings.TrimSpace(strings.Join(r.failure, "\n")); r.ended.State != passed {
			r.ended.Failure = strings.ToValidUTF8(text[:min(len(text), maxFailure)], "")
		}
		r.tell(*r.ended)
		r.begun = ""
		r.underWay = slices.DeleteFunc(r.underWay, func(s string) bool { return s == r.ended.spec })
	}
	r.ended, r.failure, r.inFailure, r.header = nil, nil, false, false
}
