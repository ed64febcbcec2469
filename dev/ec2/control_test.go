package ec2

import (
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	"github.com/elotl/kip/dev/cloudmodel"
	"github.com/elotl/kip/internal/cloud"
	"github.com/elotl/kip/internal/cloud/sim"
)

// launched is the ID of an instance that is launched.
func (c *client) launched(more ...string) string {
	c.Helper()
	code, body := c.ask("RunInstances", run(more...)...)
	_, rest, found := strings.Cut(body, "<instanceId>")
	if code != "" || !found {
		c.Fatalf("%s: %s", code, body)
	}
	id, _, _ := strings.Cut(rest, "<")
	return id
}

// order gives one, which is taken.
func (c *client) order(name string, body any) {
	c.Helper()
	if code := c.control(name, body); code != http.StatusOK {
		c.Fatalf("%s %+v: %d", name, body, code)
	}
}

func TestEachOrderIsTakenAsItsExampleSays(t *testing.T) {
	c := newClient(t, sim.Knobs{})
	page, err := os.ReadFile("../../docs/aws.md")
	if err != nil {
		t.Fatal(err)
	}
	spot := c.launched("InstanceMarketOptions.MarketType=spot")
	for _, o := range Orders() {
		body := strings.NewReader(strings.ReplaceAll(o.JSON, "i-…", spot))
		w := httptest.NewRecorder()
		c.model.Control().ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodPost, cloudmodel.ControlPath+o.Name, body))
		if w.Code != http.StatusOK {
			t.Errorf("%s %s: %d %s", o.Name, o.JSON, w.Code, w.Body)
		}
		if !strings.Contains(string(page), "`"+o.Name+"`") {
			t.Errorf("docs/aws.md does not name %s", o.Name)
		}
	}
}

func TestWhatIsOrderedGoesWrong(t *testing.T) {
	c := newClient(t, sim.Knobs{})
	c.order("lose", cloudmodel.Loss{Call: cloud.CallLaunch, Nth: 1})
	if code, _ := c.ask("RunInstances", run()...); code != "lost" || c.running() != 0 {
		t.Errorf("lost before its effect: %q, and %d run", code, c.running())
	}
	c.order("lose", cloudmodel.Loss{Call: cloud.CallLaunch, Nth: 1, After: true})
	if code, _ := c.ask("RunInstances", run()...); code != "lost" || c.running() != 1 {
		t.Errorf("lost after its effect: %q, and %d run", code, c.running())
	}
	for _, want := range []string{"RequestLimitExceeded", "InvalidParameterValue"} {
		c.order("fail", cloudmodel.Failure{Call: cloud.CallLaunch, Nth: 1, Code: want})
		if code, _ := c.ask("RunInstances", run()...); code != want || c.running() != 1 {
			t.Errorf("to be answered %s: %q, and %d run", want, code, c.running())
		}
	}

	c.order("throttle", cloudmodel.Throttle{Call: cloud.CallList, Capacity: 1})
	first, _ := c.ask("DescribeInstances")
	if second, _ := c.ask("DescribeInstances"); first != "" || second != "RequestLimitExceeded" {
		t.Errorf("of two lists, of which one may pass: %q and %q", first, second)
	}
	c.order("throttle", cloudmodel.Throttle{Call: cloud.CallList})
	if code, _ := c.ask("DescribeInstances"); code != "" {
		t.Errorf("without a bound: %q", code)
	}

	c.order("capacity", cloudmodel.Capacity{Zone: "z1", Instances: 0})
	if code, _ := c.ask("RunInstances", run()...); code != "InsufficientInstanceCapacity" {
		t.Errorf("in a zone without capacity: %q", code)
	}
	if code, body := c.ask("RunInstances", run("NetworkInterface.1.SubnetId=subnet-2")...); code != "" {
		t.Errorf("in another zone: %s", body)
	}
	c.order("capacity", cloudmodel.Capacity{Zone: "z1", Instances: -1})
	if code, body := c.ask("RunInstances", run()...); code != "" {
		t.Errorf("with capacity again: %s", body)
	}
}

func TestAnInstanceThatIsDeniedIsNotKnownForSomeCalls(t *testing.T) {
	c := newClient(t, sim.Knobs{})
	denied, other := c.launched(), c.launched()
	c.order("deny", cloudmodel.Denial{Instance: denied, Calls: 4})
	byID := "InstanceId.1=" + denied
	if code, body := c.ask("DescribeInstances"); code != "" || strings.Contains(body, denied) || !strings.Contains(body, other) {
		t.Errorf("a list: %s", body)
	}
	code, body := c.ask("DescribeInstances", "Filter.1.Name=instance-id", "Filter.1.Value.1="+denied)
	if code != "" || strings.Contains(body, denied) {
		t.Errorf("a description by a filter: %s", body)
	}
	// What would not show it anyway counts for nothing.
	code, body = c.ask("DescribeInstances", "Filter.1.Name=instance-id", "Filter.1.Value.1="+other)
	if code != "" || !strings.Contains(body, other) {
		t.Errorf("a description of another one: %s", body)
	}
	for _, action := range []string{"DescribeInstances", "TerminateInstances"} {
		if code, body := c.ask(action, byID); code != "InvalidInstanceID.NotFound" {
			t.Errorf("%s: %s", action, body)
		}
	}
	if code, body := c.ask("DescribeInstances", byID); code != "" || !strings.Contains(body, denied) || c.running() != 2 {
		t.Errorf("the fifth call: %s; %d run", body, c.running())
	}
	c.order("deny", cloudmodel.Denial{Instance: denied, Calls: 1})
	c.order("deny", cloudmodel.Denial{Instance: denied})
	if code, body := c.ask("DescribeInstances", byID); code != "" {
		t.Errorf("when that was taken back: %s", body)
	}
}

func TestAnOrderThatCannotBeIsRefused(t *testing.T) {
	c := newClient(t, sim.Knobs{})
	for name, bad := range map[string][]any{
		"hang":     {cloudmodel.Hang{Action: "RunInstances"}, cloudmodel.Hang{Action: "RunLaunches", Nth: 1}},
		"lose":     {cloudmodel.Loss{Call: cloud.CallLaunch}, cloudmodel.Loss{Nth: 1}},
		"fail":     {cloudmodel.Failure{Call: cloud.CallLaunch, Nth: 1}, cloudmodel.Failure{Call: "lunch", Nth: 1, Code: "InternalError"}},
		"throttle": {cloudmodel.Throttle{Call: "lunch", Capacity: 1}, cloudmodel.Throttle{Call: cloud.CallList, Refill: 1}},
		"deny":     {cloudmodel.Denial{Instance: "i-none", Calls: 1}},
		"capacity": {map[string]int{"Surprise": 1}},
	} {
		for _, body := range bad {
			if code := c.control(name, body); code != http.StatusBadRequest {
				t.Errorf("%s %+v: %d", name, body, code)
			}
		}
	}
}
