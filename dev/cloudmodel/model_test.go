package cloudmodel

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/elotl/kip/internal/catalog"
	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/cloud/sim"
)

// other is the model of some cloud, with one action and one order of its own.
type other struct {
	*Model
	painted string
}

var otherWords = Words{
	Cloud:    "Other",
	Action:   "insert",
	Code:     "BACKEND_ERROR",
	Instance: "vm-…",
	Zone:     "z",
}

type paint struct{ Colour string }

func (o *other) paint(p paint) error {
	o.painted = p.Colour
	return nil
}

func (o *other) orders() []Order[*other] {
	return append(Orders[*other](otherWords), NewOrder("paint", `{"Colour":"red"}`, "it is painted", (*other).paint))
}

func newOther(t *testing.T) *other {
	t.Helper()
	m, err := New(Config{
		Sim: sim.Config{Catalogue: []catalog.InstanceType{{
			Name: "small", MilliCPU: 1000, MemoryBytes: 1 << 30, Arch: "amd64",
			Offerings: []catalog.PurchaseOption{{Zone: "z", Spot: true}, {Zone: "z"}},
		}}},
		Words:   otherWords,
		Knows:   func(action string) bool { return action == "insert" },
		Refusal: func(code string) error { return errors.New(code) },
		Ways:    []Way{"mail", "phone"},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	})
	return &other{Model: m}
}

// launch launches one as the model of a cloud would, and returns its ID.
func (o *other) launch(t *testing.T, token string, capacityType cloud.CapacityType) (string, error) {
	t.Helper()
	results := o.Machines().Launch(t.Context(), cloud.LaunchRequest{
		Token:      token,
		LaunchSpec: cloud.LaunchSpec{InstanceType: "small", Zone: "z", CapacityType: capacityType},
		Machines:   []cloud.Machine{{Tags: map[string]string{cloud.TagOwner: "o"}, UserData: []byte{}}},
	})
	return results[0].Instance.ID, results[0].Err
}

func (o *other) order(t *testing.T, name, body string) *httptest.ResponseRecorder {
	t.Helper()
	w := httptest.NewRecorder()
	Control(o, func() any { return o.State() }, o.orders()).ServeHTTP(w,
		httptest.NewRequestWithContext(t.Context(), http.MethodPost, ControlPath+name, strings.NewReader(body)))
	return w
}

func TestTheModelOfAnyCloudTakesTheOrdersAndItsOwn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newOther(t)
		spot, err := o.launch(t, "one", cloud.Spot)
		if err != nil {
			t.Fatal(err)
		}
		for _, order := range o.orders() {
			if w := o.order(t, order.Name, strings.ReplaceAll(order.JSON, "vm-…", spot)); w.Code != http.StatusOK {
				t.Errorf("%s %s: %d %s", order.Name, order.JSON, w.Code, w.Body)
			}
		}
		if o.painted != "red" {
			t.Errorf("it is painted %q", o.painted)
		}
		if w := o.order(t, "hang", `{"Action":"RunInstances","Nth":1}`); w.Code != http.StatusBadRequest ||
			!strings.Contains(w.Body.String(), "want one of Other that the model knows, such as insert") {
			t.Errorf("an action of another cloud: %d %s", w.Code, w.Body)
		}
		if w := o.order(t, "paint", `{"Shape":"round"}`); w.Code != http.StatusBadRequest {
			t.Errorf("a field that there is not: %d", w.Code)
		}
	})
}

func TestACallIsCountedAndHangsAsItWasToldTo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newOther(t)
		if err := o.Hang(Hang{Action: "insert", Nth: 2, After: true}); err != nil {
			t.Fatal(err)
		}
		if err := o.Hang(Hang{Action: "insert", Nth: 4}); err != nil {
			t.Fatal(err)
		}
		done := 0
		for n, want := range []error{nil, context.DeadlineExceeded, nil, context.DeadlineExceeded, nil} {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			_, err := o.Call(ctx, "insert", func() (any, error) {
				done++
				return n, nil
			})
			cancel()
			if !errors.Is(err, want) {
				t.Errorf("call %d: %v, want %v", n+1, err, want)
			}
		}
		o.CountRefused("insert")
		s := o.State()
		if s.Calls["insert"] != 5 || done != 4 || !slices.Equal(s.Hung, []string{"insert", "insert"}) || s.Refused["insert"] != 1 {
			t.Errorf("%d calls had their effect: %+v", done, s)
		}
	})
}

func TestFaultsAreThoseOfTheCallsKind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newOther(t)
		if err := o.FailCall(Failure{Call: cloud.CallList, Nth: 1, Code: "BACKEND_ERROR"}); err != nil {
			t.Fatal(err)
		}
		no := errors.New("no")
		for n, call := range []struct {
			kind sim.Kind
			err  error
			want string
		}{
			{cloud.CallTag, nil, "<nil>"},
			{cloud.CallTag, no, "no"},
			{cloud.CallList, no, "BACKEND_ERROR"},
			{cloud.CallList, nil, "<nil>"},
		} {
			if err := o.Arrive(t.Context(), call.kind, call.err); fmt.Sprint(err) != call.want {
				t.Errorf("call %d: %v, want %s", n+1, err, call.want)
			}
		}
		if err := o.FailCall(Failure{Call: cloud.CallList, Nth: 1}); err == nil || !strings.Contains(err.Error(), "such as BACKEND_ERROR") {
			t.Errorf("a failure without a code: %v", err)
		}
	})
}

func TestAnInterruptionIsAnnouncedByTheWaysOfTheCloud(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newOther(t)
		if err := o.Interrupt(Interruption{}); err == nil {
			t.Error("an instance was interrupted where there is none")
		}
		older, err := o.launch(t, "one", cloud.Spot)
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		younger, err := o.launch(t, "two", cloud.Spot)
		if err != nil {
			t.Fatal(err)
		}
		if err := o.Interrupt(Interruption{Untold: []Way{"drum"}}); err == nil || !strings.Contains(err.Error(), `"mail" "phone"`) {
			t.Errorf("a way that the cloud has not: %v", err)
		}
		if err := o.Interrupt(Interruption{Untold: []Way{"mail"}}); err != nil {
			t.Fatal(err)
		}
		if all := o.Announced("mail"); len(all) != 0 {
			t.Errorf("announced by mail: %+v", all)
		}
		if all := o.Announced("phone"); len(all) != 1 || all[0].InstanceID != younger {
			t.Errorf("announced by phone: %+v, want that of %s and not of %s", all, younger, older)
		}
	})
}

func TestAStateIsReadAsItWasWritten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newOther(t)
		id, err := o.launch(t, "one", cloud.OnDemand)
		if err != nil {
			t.Fatal(err)
		}
		w := httptest.NewRecorder()
		Control(o, func() any { return o.State() }, o.orders()).ServeHTTP(w,
			httptest.NewRequestWithContext(t.Context(), http.MethodGet, ControlPath, nil))
		var s State
		if err := json.NewDecoder(w.Body).Decode(&s); err != nil || len(s.Instances) != 1 || s.Instances[0].ID != id {
			t.Errorf("%+v, %v", s, err)
		}
	})
}
