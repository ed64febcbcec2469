package trial

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	apiv1 "github.com/elotl/kip/api/v1"
)

// Result is how a step ended.
type Result string

// Results of steps.
const (
	OK     Result = "ok"
	Failed Result = "failed"
	// NotTried says that something was missing, so that nothing is known. It never counts as OK.
	NotTried Result = "not tried"
)

// Report is what a trial has found. It holds no secret: names, addresses and IDs of what the trial made, and what Kip and the API
// server said of it.
type Report struct {
	ID      string    `json:"id"`
	Began   time.Time `json:"began"`
	Ended   time.Time `json:"ended"`
	Kipctl  string    `json:"kipctl"`
	Cluster About     `json:"cluster"`
	Price   Price     `json:"price"`
	// Spent is about what the instances have cost, in US dollars; without what is paid beside them.
	Spent float64 `json:"spent"`
	// Problem says why the steps could not begin; "" if they could.
	Problem string       `json:"problem,omitempty"`
	Steps   []StepReport `json:"steps"`
	Left    Left         `json:"left"`
}

// About is the cluster of a trial.
type About struct {
	Kubernetes string `json:"kubernetes"`
	// Nodes are Kip's virtual nodes: the name, and the version of the kubelet on its cells.
	Nodes  []string `json:"nodes"`
	Region string   `json:"region,omitempty"`
}

// StepReport is what one step has found.
type StepReport struct {
	Name   string `json:"name"`
	What   string `json:"what"`
	Result Result `json:"result"`
	// Why says why it failed or was not tried, and Found what it saw.
	Why     string      `json:"why,omitempty"`
	Found   []string    `json:"found,omitempty"`
	Seconds float64     `json:"seconds"`
	Pods    []PodReport `json:"pods,omitempty"`
}

// PodReport is a pod and its cell.
type PodReport struct {
	Name         string `json:"name"`
	IP           string `json:"ip,omitempty"`
	Cell         string `json:"cell,omitempty"`
	Instance     string `json:"instance,omitempty"`
	InstanceType string `json:"instanceType,omitempty"`
	Zone         string `json:"zone,omitempty"`
	LaunchType   string `json:"launchType,omitempty"`
	PricePerHour string `json:"pricePerHour,omitempty"`
	Attempt      int    `json:"attempt,omitempty"`
	// Seconds are from the answer to its creation until kipctl saw its container started, by kipctl's clock, to half a second; 0 for
	// a pod that never started.
	Seconds float64 `json:"seconds"`
	// Phases are what of it each phase took: by Kip's clock, but for the last, which is the rest.
	Phases []PhaseTook `json:"phases,omitempty"`
	Boot   *apiv1.Boot `json:"boot,omitempty"`
}

// PhaseTook is how long a phase of a cell took. Its name is that of the step of the Cell resource that ends it.
type PhaseTook struct {
	Name    string  `json:"name"`
	Seconds float64 `json:"seconds"`
}

// started is the phase that ends with the start of a pod's container.
const started = "started"

// Left is what is left of a trial.
type Left struct {
	// Names are what was there at the last look; empty if nothing was.
	Names []string `json:"names"`
	// Looked says where nothing was found, and NotKnown what could not be asked.
	Looked   []string `json:"looked"`
	NotKnown []string `json:"notKnown"`
}

// Nothing reports whether it is proven that nothing is left.
func (l Left) Nothing() bool { return len(l.Names)+len(l.NotKnown) == 0 }

// Err says what went wrong; nil if nothing failed and nothing is left. What was not tried is no error.
func (r Report) Err() error {
	var wrong []string
	if r.Problem != "" {
		wrong = append(wrong, r.Problem)
	}
	var failed []string
	for _, s := range r.Steps {
		if s.Result == Failed {
			failed = append(failed, s.Name)
		}
	}
	if len(failed) > 0 {
		wrong = append(wrong, "failed: "+strings.Join(failed, ", "))
	}
	if len(r.Left.Names) > 0 {
		wrong = append(wrong, fmt.Sprintf("left: %s; kipctl try --clean removes it", strings.Join(r.Left.Names, ", ")))
	}
	if len(r.Left.NotKnown) > 0 {
		wrong = append(wrong, "not known whether anything is left: "+strings.Join(r.Left.NotKnown, "; "))
	}
	if len(wrong) == 0 {
		return nil
	}
	return fmt.Errorf("%s", strings.Join(wrong, "; "))
}

// Text writes a price for people.
func (p Price) Text(out io.Writer) error {
	w := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	fmt.Fprintln(w, "STEP\tINSTANCES\tEACH AT MOST\tBESIDE\tAT MOST\tWHAT")
	for _, s := range p.Steps {
		cells, lasts, beside := fmt.Sprint(s.Cells), "", ""
		if s.Cells > 0 {
			lasts = (time.Duration(s.Lasts) * time.Second).String()
			cells = strings.TrimSpace(cells + " " + s.InstanceType)
		}
		if s.Beside > 0 {
			beside = fmt.Sprintf("$%.2f", s.Beside)
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t$%.4f\t%s\n", s.Name, cells, lasts, beside, s.AtMost, s.What)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	w = tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	fmt.Fprintln(w, "\nPART\tBY CATALOGUE\tAT MOST\tPRICE")
	for _, part := range p.Parts {
		name, atMost := part.Name, ""
		if part.Of != "" {
			name = "  " + name
		}
		if part.AtMost != nil {
			atMost = dollars(part.AtMost)
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", name, dollars(part.Catalogue), atMost, part.Why)
	}
	fmt.Fprintf(w, "all\t%s\t%s\tat most $%.2f is allowed\n", dollars(p.Catalogue), dollars(&p.AtMost), Cap)
	if err := w.Flush(); err != nil {
		return err
	}
	by := "The catalogue of this kipctl has no prices for this cluster."
	if p.QuotedPerHour != nil {
		by = fmt.Sprintf("BY CATALOGUE has the prices of %s of %s, for types that Kip then chooses, and the bounds of what has no price there.", p.Region,
			p.AsOf)
	}
	_, err := fmt.Fprintf(out, "\nEach instance counts for as long as it may live. AT MOST is a bound. %s\n", by)
	return err
}

// dollars is an amount for people.
func dollars(amount *float64) string {
	if amount == nil {
		return "not known"
	}
	return fmt.Sprintf("$%.4f", *amount)
}

// Text writes a report for people.
func (r Report) Text(out io.Writer) error {
	fmt.Fprintf(out, "Trial %s of Kip, by kipctl %s\nbegan %s, ended %s\nKubernetes %s, virtual nodes %s, region %s\n", r.ID, r.Kipctl,
		r.Began.UTC().Format(time.RFC3339), r.Ended.UTC().Format(time.RFC3339), r.Cluster.Kubernetes,
		strings.Join(r.Cluster.Nodes, ", "), orNotKnown(r.Cluster.Region))
	fmt.Fprintf(out, "instances cost about $%.4f; all together at most $%.2f was possible\n", r.Spent, r.Price.AtMost)
	if r.Problem != "" {
		fmt.Fprintf(out, "\nNo step was tried: %s\n", r.Problem)
	}
	for _, s := range r.Steps {
		fmt.Fprintf(out, "\n%s: %s", s.Name, s.Result)
		if s.Why != "" {
			fmt.Fprintf(out, ": %s", s.Why)
		}
		fmt.Fprintf(out, "\n  %s (%.1f s)\n", s.What, s.Seconds)
		for _, f := range s.Found {
			fmt.Fprintf(out, "  %s\n", f)
		}
		for _, p := range s.Pods {
			p.text(out)
		}
	}
	return r.Left.Text(out)
}

func (p PodReport) text(out io.Writer) {
	if p.Cell == "" {
		fmt.Fprintf(out, "  pod %s: no cell was seen\n", p.Name)
		return
	}
	fmt.Fprintf(out, "  pod %s: address %s, cell %s, instance %s, %s %s in %s, $%s an hour\n", p.Name, orNotKnown(p.IP), p.Cell,
		orNotKnown(p.Instance), orNotKnown(p.InstanceType), p.LaunchType, orNotKnown(p.Zone), orNotKnown(p.PricePerHour))
	if p.Attempt > 1 {
		fmt.Fprintf(out, "    this is its cell number %d: the others did not start\n", p.Attempt)
	}
	if p.Seconds == 0 {
		return
	}
	fmt.Fprintf(out, "    started after %.1f s", p.Seconds)
	for i, phase := range p.Phases {
		separator := ", "
		if i == 0 {
			separator = ": "
		}
		fmt.Fprintf(out, "%s%s %.1f", separator, phase.Name, phase.Seconds)
	}
	fmt.Fprintln(out)
}

// Text writes what is left for people.
func (l Left) Text(out io.Writer) error {
	fmt.Fprint(out, "\n")
	if l.Nothing() {
		fmt.Fprintf(out, "Nothing is left: %s.\n", strings.Join(l.Looked, "; "))
		return nil
	}
	for _, name := range l.Names {
		fmt.Fprintf(out, "LEFT: %s\n", name)
	}
	for _, why := range l.NotKnown {
		fmt.Fprintf(out, "NOT KNOWN whether anything is left: %s\n", why)
	}
	_, err := fmt.Fprintf(out, "Found nothing: %s.\n", orNotKnown(strings.Join(l.Looked, "; ")))
	return err
}

func orNotKnown(s string) string {
	if s == "" {
		return "not known"
	}
	return s
}
