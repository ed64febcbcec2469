package cloudmodel

import (
	"encoding/json"
	"fmt"
	"net/http"
)

// ControlPath is where Control is to be served beside the API.
const ControlPath = "/_model/"

// maxOrder bounds an order in bytes.
const maxOrder = 1 << 20

// Order is one that a model of kind M takes from tests and people in another process.
type Order[M any] struct {
	Name string // in its path
	JSON string // an example
	Does string // for people

	do func(M, *json.Decoder) error
}

// NewOrder returns an order whose body is a T.
func NewOrder[M, T any](name, example, does string, do func(M, T) error) Order[M] {
	return Order[M]{name, example, does, func(m M, body *json.Decoder) error {
		var one T
		if err := body.Decode(&one); err != nil {
			return err
		}
		return do(m, one)
	}}
}

// modelled is the model of a cloud, which embeds a Model.
type modelled interface{ base() *Model }

func common[M modelled, T any](name, example, does string, do func(*Model, T) error) Order[M] {
	return NewOrder(name, example, does, func(m M, one T) error { return do(m.base(), one) })
}

// Orders returns those that the model of any cloud takes, with examples in its words.
func Orders[M modelled](w Words) []Order[M] {
	return []Order[M]{
		common[M]("hang", fmt.Sprintf(`{"Action":%q,"Nth":1,"After":true}`, w.Action),
			"the Nth call of an action hangs, before or After its effect", (*Model).Hang),
		common[M]("lose", `{"Call":"launch","Nth":1,"After":true}`,
			"the connection of the Nth call of a kind breaks, and its answer is lost", (*Model).Lose),
		common[M]("fail", fmt.Sprintf(`{"Call":"launch","Nth":1,"Code":%q}`, w.Code),
			"that call has no effect, and is answered with an error", (*Model).FailCall),
		common[M]("throttle", `{"Call":"list","Capacity":1,"Refill":0.1}`,
			"the calls of a kind are bounded, to more a second; 0 and 0 lift that", (*Model).Throttle),
		common[M]("capacity", fmt.Sprintf(`{"Zone":%q,"Instances":0}`, w.Zone),
			"there is room for so many, of a Type, in a Zone and in a Subnet; -1 lifts that", (*Model).Bound),
		common[M]("deny", fmt.Sprintf(`{"Instance":%q,"Calls":3}`, w.Instance),
			"so many calls do not know an instance that is there", (*Model).Deny),
		common[M]("interfaces", `{"Stay":true}`,
			"network interfaces outlive the instances that end from now on", (*Model).Interfaces),
		common[M]("interrupt", fmt.Sprintf(`{"Instance":%q}`, w.Instance),
			"a spot instance is taken back, with "+w.Cloud+"'s notice; {} means the youngest", (*Model).Interrupt),
	}
}

// Control serves what tests and people do to a model in another process: GET is its state; a POST
// to one of the orders does that.
func Control[M any](m M, state func() any, orders []Order[M]) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+ControlPath, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(state()) // or whoever asked is gone
	})
	for _, o := range orders {
		mux.HandleFunc("POST "+ControlPath+o.Name, func(w http.ResponseWriter, r *http.Request) {
			body := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxOrder))
			body.DisallowUnknownFields()
			if err := o.do(m, body); err != nil {
				http.Error(w, err.Error(), http.StatusBadRequest)
			}
		})
	}
	return mux
}
