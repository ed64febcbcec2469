package watches

import (
	"fmt"
	"strconv"
	"sync"
)

// Object is one version of one object. It never changes. Where many read it, it is
// written in each form at most once.
type Object struct {
	APIObject
	RV uint64 // the resource version
	// mu guards forms, and the object while it is written: a quantity keeps its
	// text.
	mu    sync.Mutex
	forms *[Forms]*Form // nil where one reader has it, once or twice
}

// Forms is how many ways of writing an object are kept.
const Forms = 2

// Form is a way in which an object is written: the whole, and the part of it that
// is an item of a list.
type Form struct{ Whole, Item []byte }

// NewObject takes over o, which must not be changed by anyone from here on and
// must carry a resource version.
func NewObject(k *Kind, o APIObject) (*Object, error) {
	rv, err := strconv.ParseUint(o.GetResourceVersion(), 10, 64)
	if err != nil {
		return nil, fmt.Errorf("%s %s: resourceVersion %q is not a number", k.Name, Key(o.GetNamespace(), o.GetName()), o.GetResourceVersion())
	}
	o.GetObjectKind().SetGroupVersionKind(k.GVK())
	object := &Object{APIObject: o, RV: rv}
	if !k.OfOneReader {
		object.forms = new([Forms]*Form)
	}
	return object, nil
}

// At returns a copy of the object that carries another resource version.
func (o *Object) At(rv uint64) *Object {
	c := o.DeepCopyObject().(APIObject)
	c.SetResourceVersion(strconv.FormatUint(rv, 10))
	other := &Object{APIObject: c, RV: rv}
	if o.forms != nil {
		other.forms = new([Forms]*Form)
	}
	return other
}

// Form returns the form with number f, less than formats, which write makes where
// there is none yet.
func (o *Object) Form(f int, write func(APIObject) (whole, item []byte, err error)) (*Form, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.forms != nil && o.forms[f] != nil {
		return o.forms[f], nil
	}
	whole, item, err := write(o.APIObject)
	if err != nil {
		return nil, err
	}
	e := &Form{whole, item}
	if o.forms != nil {
		o.forms[f] = e
	}
	return e, nil
}
