package cloudmodel

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
)

// Answer is what a model answers to a call of the same process. An answer that is lost, as one is whose caller has
// gone, is io.ErrUnexpectedEOF, which a server's client would see.
func Answer(model http.Handler, r *http.Request) (answer *httptest.ResponseRecorder, err error) {
	defer func() {
		switch p := recover().(type) {
		case nil:
		case error:
			if !errors.Is(p, http.ErrAbortHandler) {
				panic(p)
			}
			err = io.ErrUnexpectedEOF
		default:
			panic(p)
		}
	}()
	answer = httptest.NewRecorder()
	model.ServeHTTP(answer, r)
	return answer, nil
}
