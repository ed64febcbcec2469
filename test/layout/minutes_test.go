package layout

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// mostMinutes is what all stages together may take on two cores from empty caches, of which 75 are
// wanted, and mostWarm when they run again at once, of which 30 are. With EC2 come a world of real
// cells, a day in virtual time and machines that boot the published image; else it only gets smaller.
const (
	mostMinutes = 79
	mostWarm    = 56
)

// unmeasured are the stages whose minutes from empty caches nobody has measured yet with what
// bounds them now, which the table says by a dash.
var unmeasured = []string{"unit", "fuzz", "e2e", "hostile", "tutorial", "boot", "conformance-subset"}

// stagesLine is where the Makefile says what make test runs, before its tally.
var stagesLine = regexp.MustCompile(`(?m)^override STAGES := (.*)$`)

// minutesHead is the head of the table of minutes in CONTRIBUTING.md.
const minutesHead = "| stage | does | cold | warm | allowed, cold |"

// besideMark is before a stage of the Makefile that is made beside the others: its minutes are theirs.
const besideMark = "beside:"

// dash stands in the table for what is not measured yet.
const dash = "–"

// minutesOf are a row's: measured cold and warm, and allowed.
type minutesOf [3]int

// wrongMinutes compares the table of minutes with the stages of make test: a row each,
// all of them measured, none longer than it may take, and together no more than is allowed.
func wrongMinutes(contributing, makefile string, unmeasured []string) (out []string) {
	wrong := func(format string, args ...any) {
		out = append(out, "the table of minutes in CONTRIBUTING.md: "+fmt.Sprintf(format, args...))
	}
	_, table, found := strings.Cut(contributing, minutesHead+"\n")
	stages := stagesLine.FindStringSubmatch(makefile)
	if !found || stages == nil {
		wrong("it has no head %q, or the Makefile no STAGES: this test does not see what it compares", minutesHead)
		return out
	}
	table, _, _ = strings.Cut(table, "\n\n")
	open, beside := []string{"tally"}, []string(nil)
	for _, s := range strings.Fields(stages[1]) {
		stage, is := strings.CutPrefix(s, besideMark)
		if is {
			beside = append(beside, stage)
		}
		open = append(open, stage)
	}
	var sum minutesOf
	all := ""
	for line := range strings.Lines(table) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		if len(cells) != 5 || strings.HasPrefix(cells[0], "--") {
			continue
		}
		stage := strings.TrimSuffix(strings.TrimPrefix(cells[0], "`make "), "`")
		at := slices.Index(open, stage)
		switch {
		case cells[0] == "all":
			all = strings.Join(cells[2:], " | ")
			continue
		case at < 0:
			wrong("make test has no stage %s, or the table has it twice", stage)
		default:
			open = slices.Delete(open, at, at+1)
		}
		if slices.Contains(beside, stage) {
			if cells[2] != "beside" || cells[3] != "beside" || cells[4] != "beside" {
				wrong("%s is made beside the others, which the row must say instead of minutes: each of them %q", cells[0], "beside")
			}
			continue
		}
		var row minutesOf
		for i, cell := range cells[2:] {
			n, err := strconv.Atoi(cell)
			switch {
			case i == 0 && slices.Contains(unmeasured, stage):
				if cell != dash {
					wrong("%s has %q for cold: take it off this test's list of what is not measured", cells[0], cell)
				}
			case err != nil || n < 1:
				wrong("%s has %q for %s: want whole minutes, as the table at the end of make test says, from empty caches for cold", cells[0], cell,
					[]string{"cold", "warm", "allowed"}[i])
			}
			row[i] = n
			sum[i] += n
		}
		for i, measured := range row[:2] {
			if allowed := row[2]; allowed > 0 && measured > allowed {
				wrong("%s takes %d minutes %s: %d are allowed", cells[0], measured, []string{"from empty caches", "warm"}[i], allowed)
			}
		}
	}
	for _, stage := range open {
		wrong("it has no row for make %s", stage)
	}
	if sum[2] > mostMinutes {
		wrong("%d minutes are allowed together: want %d at most", sum[2], mostMinutes)
	}
	if sum[1] > mostWarm {
		wrong("together they take %d minutes warm: %d are allowed", sum[1], mostWarm)
	}
	cold := strconv.Itoa(sum[0])
	if len(unmeasured) > 0 {
		cold = dash
	}
	if want := fmt.Sprintf("%s | %d | %d, and %d warm", cold, sum[1], sum[2], mostWarm); all != want {
		wrong("its last row says %q: together they are %q", all, want)
	}
	return out
}

func TestTheMinutesOfEachStageAreMeasuredAndAllowed(t *testing.T) {
	contributing, err := os.ReadFile(top(t) + "/CONTRIBUTING.md")
	if err != nil {
		t.Fatal(err)
	}
	makefile, err := os.ReadFile(top(t) + "/Makefile")
	if err != nil {
		t.Fatal(err)
	}
	report(t, wrongMinutes(string(contributing), string(makefile), unmeasured))
}

func TestWrongMinutesAreFound(t *testing.T) {
	const (
		makefile = "override STAGES := build e2e\n"
		rows     = minutesHead + `
| --- | --- | --- | --- | --- |
| ` + "`make build`" + ` | programs | 7 | 1 | 13 |
| ` + "`make e2e`" + ` | machines | 30 | 19 | 40 |
| ` + "`make tally`" + ` | counts | 1 | 1 | 1 |
| all | | 38 | 21 | 54, and 56 warm |

`
	)
	expect(t, wrongMinutes(rows, makefile, nil))
	expect(t, wrongMinutes(rows, makefile, []string{"e2e"}), "take it off", `together they are "– |`)
	expect(t, wrongMinutes(strings.NewReplacer("| 30 |", "| – |", "| 38 |", "| – |").Replace(rows), makefile, []string{"e2e"}))
	for _, tc := range []struct {
		was, is string
		says    []string
	}{
		{"| 30 | 19 |", "| – | 19 |", []string{"e2e` has \"–\" for cold", "together they are \"8 | 21"}},
		{"| 30 | 19 |", "| 30 | – |", []string{"has \"–\" for warm", "38 | 2 | 54"}},
		{"| 40 |", "| 73 |", []string{"87 minutes are allowed together: want 79", "38 | 21 | 87"}},
		{"| 40 |", "| 41 |", []string{"38 | 21 | 55"}},
		{"| 30 | 19 |", "| 41 | 19 |", []string{"e2e` takes 41 minutes from empty caches: 40 are allowed", "49 | 21 | 54"}},
		{"| 30 | 19 |", "| 30 | 66 |", []string{"e2e` takes 66 minutes warm: 40 are allowed", "take 68 minutes warm: 56", "38 | 68 | 54"}},

		{"`make e2e`", "`make fly`", []string{"no stage fly", "no row for make e2e"}},
		{"`make e2e`", "`make build`", []string{"no stage build, or the table has it twice", "no row for make e2e"}},
		{"| all | | 38", "| all | | –", []string{"its last row says"}},
		{"| stage |", "| step |", []string{"does not see"}},
	} {
		expect(t, wrongMinutes(strings.Replace(rows, tc.was, tc.is, 1), makefile, nil), tc.says...)
	}
	expect(t, wrongMinutes(rows, "STAGES = build\n", nil), "does not see")
	const beside = "override STAGES := build beside:lint e2e\n"
	lane := strings.Replace(rows, "| all |", "| `make lint` | reads | beside | beside | beside |\n| all |", 1)
	expect(t, wrongMinutes(lane, beside, nil))
	expect(t, wrongMinutes(strings.Replace(lane, "reads | beside", "reads | 5", 1), beside, nil), "made beside")
}
