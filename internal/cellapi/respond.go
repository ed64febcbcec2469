package cellapi

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strconv"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/scheme"
)

// statusOf returns err as the Status that a client is told.
func statusOf(err error) *metav1.Status {
	var s apierrors.APIStatus
	if !errors.As(err, &s) {
		s = apierrors.NewInternalError(err)
	}
	status := s.Status()
	status.Kind, status.APIVersion = "Status", "v1"
	if status.Status == "" {
		status.Status = metav1.StatusFailure
	}
	return &status
}

// writeError answers with err as a Status in the format that the client accepts.
func writeError(w http.ResponseWriter, r *http.Request, err error) {
	f, _ := accepted(r.Header)
	status := statusOf(err)
	if d := status.Details; d != nil && d.RetryAfterSeconds > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(int(d.RetryAfterSeconds)))
	}
	writeObject(w, f, int(status.Code), status)
}

// writeObject answers with o, which must carry its kind and apiVersion.
func writeObject(w http.ResponseWriter, f format, code int, o runtime.Object) {
	b, err := encode(f, o)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	writePieces(w, f, code, b)
}

// writePieces answers with an encoded object that comes in pieces. A client that
// is gone is no error worth reporting.
func writePieces(w http.ResponseWriter, f format, code int, pieces ...[]byte) {
	size := 0
	for _, p := range pieces {
		size += len(p)
	}
	w.Header().Set("Content-Type", f.mediaType())
	w.Header().Set("Content-Length", strconv.Itoa(size))
	w.WriteHeader(code)
	defer deadline(w)()
	for _, p := range pieces {
		if _, err := w.Write(p); err != nil {
			return
		}
	}
}

// deadline gives the client a time to take what is written from here to the call of
// what it returns.
func deadline(w http.ResponseWriter) (end func()) {
	control := http.NewResponseController(w)
	// The network's time is the real one. A writer that knows no deadline leaves
	// it to the transport's own limits.
	_ = control.SetWriteDeadline(time.Now().Add(writeWithin))
	return func() {
		if control.Flush() == nil {
			_ = control.SetWriteDeadline(time.Time{})
		}
	}
}

// readBody reads the request's body, which is limited.
func readBody(r *http.Request) ([]byte, error) {
	b, err := io.ReadAll(r.Body)
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &tooLarge):
		return nil, apierrors.NewRequestEntityTooLargeError(fmt.Sprintf("the limit is %d bytes", tooLarge.Limit))
	case errors.Is(err, os.ErrDeadlineExceeded):
		return nil, overBudget(limitSlow, "a body is to come within %v", readWithin)
	case err != nil:
		return nil, apierrors.NewBadRequest("read the request's body: " + err.Error())
	}
	return b, nil
}

// decodeBody decodes the request's body, JSON or protobuf, into an object of the
// type T, which is of one of these kinds.
func decodeBody[T runtime.Object](r *http.Request, kinds ...schema.GroupVersionKind) (T, error) {
	var none T
	t, err := bodyMediaType(r.Header)
	if err != nil {
		return none, apierrors.NewBadRequest(err.Error())
	}
	if t != runtime.ContentTypeJSON && t != runtime.ContentTypeProtobuf {
		return none, unsupportedMediaType(t, runtime.ContentTypeJSON, runtime.ContentTypeProtobuf)
	}
	body, err := readBody(r)
	if err != nil {
		return none, err
	}
	// Before it is decoded: another kind may have quantities in it, which are
	// computed with as they are read.
	gvk, err := kindOfBody(body)
	if err != nil {
		return none, err
	}
	if !slices.Contains(kinds, gvk) {
		return none, apierrors.NewBadRequest(fmt.Sprintf("the body is a %q of %q, it must be one of %v", cut(gvk.Kind, 64),
			cut(gvk.GroupVersion().String(), 64), kinds))
	}
	return decode[T](body)
}

// kindOfBody reads only what kind of object b is, JSON or protobuf.
func kindOfBody(b []byte) (schema.GroupVersionKind, error) {
	if rest, ok := bytes.CutPrefix(b, protobufMagic); ok {
		var u runtime.Unknown
		if err := u.Unmarshal(rest); err != nil {
			return schema.GroupVersionKind{}, apierrors.NewBadRequest("decode the body: " + err.Error())
		}
		return schema.FromAPIVersionAndKind(u.APIVersion, u.Kind), nil
	}
	var meta metav1.TypeMeta
	if err := json.Unmarshal(b, &meta); err != nil {
		return schema.GroupVersionKind{}, apierrors.NewBadRequest("decode the body: " + err.Error())
	}
	return meta.GroupVersionKind(), nil
}

// decode decodes b, JSON or protobuf, into an object of the type T.
func decode[T runtime.Object](b []byte) (T, error) {
	var none T
	o, _, err := scheme.Codecs.UniversalDeserializer().Decode(b, nil, nil)
	if err != nil {
		return none, apierrors.NewBadRequest("decode the body: " + err.Error())
	}
	typed, ok := o.(T)
	if !ok {
		return none, apierrors.NewBadRequest(fmt.Sprintf("a %T is not what belongs here", o))
	}
	return typed, nil
}

func unsupportedMediaType(got string, want ...string) error {
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status:  metav1.StatusFailure,
		Code:    http.StatusUnsupportedMediaType,
		Reason:  metav1.StatusReasonUnsupportedMediaType,
		Message: fmt.Sprintf("the body's media type %q is not supported here, these are: %q", got, want),
	}}
}

func notAcceptable() error {
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status:  metav1.StatusFailure,
		Code:    http.StatusNotAcceptable,
		Reason:  metav1.StatusReasonNotAcceptable,
		Message: fmt.Sprintf("only %s and %s can be answered, whole objects only", runtime.ContentTypeJSON, runtime.ContentTypeProtobuf),
	}}
}

// notYet asks the client to repeat the request soon. It is 429, not 503: a
// reflector of client-go that is refused with 429 repeats its watch from where it
// stands, with any other error it lists anew.
func notYet(what string) error {
	return apierrors.NewTooManyRequests(what+" is not known yet", 1)
}

// tooLarge is how the API server refuses a resource version from the future; a
// reflector then lists without one. There is no Retry-After: a client would ask for
// the same version ten times before it does.
func tooLarge(asked, current uint64) error {
	err := apierrors.NewTimeoutError(fmt.Sprintf("Too large resource version: %d, current: %d", asked, current), 0)
	err.ErrStatus.Details.Causes = []metav1.StatusCause{{
		Type: metav1.CauseTypeResourceVersionTooLarge, Message: "Too large resource version",
	}}
	return err
}

func expired(asked, oldest string) error {
	return apierrors.NewResourceExpired(fmt.Sprintf("too old resource version: %s (%s)", asked, oldest))
}
