// Package wire sees to it that AWS' SDK reads all that the model of AWS answers, where it stands: the SDK
// drops what it does not know, and nobody is told. What is no error is looked at; how errors are read, the tests of
// the driver see.
package wire

import (
	"bytes"
	"context"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"reflect"
	"slices"
	"sort"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ecr"
	"github.com/aws/aws-sdk-go-v2/service/iam"
	"github.com/aws/aws-sdk-go-v2/service/pricing"
	"github.com/aws/aws-sdk-go-v2/service/servicequotas"
	"github.com/aws/aws-sdk-go-v2/service/sts"
	"github.com/aws/smithy-go/middleware"
)

// Checked is an API's handler whose answers the SDK is given to read, once for each form that they have. What is
// in one and not in what the SDK makes of it is an error of the test.
func Checked(t testing.TB, api http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return // who asks has gone
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		call := callOf(r, body)
		if call == nil { // another protocol
			api.ServeHTTP(w, r)
			return
		}
		answer := httptest.NewRecorder()
		api.ServeHTTP(answer, r)
		if answer.Code == http.StatusOK {
			if err := call.check(answer.Body.Bytes()); err != nil {
				t.Errorf("%s.%s: %v\n%s", call.service, call.action, err, answer.Body)
			}
		}
		for name, values := range answer.Header() {
			w.Header()[name] = values
		}
		w.WriteHeader(answer.Code)
		if _, err := w.Write(answer.Body.Bytes()); err != nil {
			return // who asks has gone
		}
	})
}

// call is one of a service.
type call struct {
	service, action string
	answers         string // its media type
	read            func([]byte) ([]leaf, error)
}

// Versions are those that the SDK's query services send, targets what stands before the action of those in JSON.
var (
	versions = map[string]string{"2016-11-15": "ec2", "2011-06-15": "sts", "2010-05-08": "iam"}
	targets  = map[string]string{
		"AmazonEC2ContainerRegistry_V20150921": "ecr", "AWSPriceListService": "pricing", "ServiceQuotasV20190624": "servicequotas",
	}
)

func callOf(r *http.Request, body []byte) *call {
	if at, action, is := strings.Cut(r.Header.Get("X-Amz-Target"), "."); is && targets[at] != "" {
		return &call{targets[at], action, r.Header.Get("Content-Type"), ofJSON}
	}
	form, err := url.ParseQuery(string(body))
	if service := versions[form.Get("Version")]; err == nil && service != "" {
		return &call{service, form.Get("Action"), "text/xml", ofXML}
	}
	return nil
}

// seen are the forms of answers that were read whole.
var seen sync.Map

func (c *call) check(answer []byte) error {
	told, err := c.read(answer)
	if err != nil {
		return err
	}
	form := c.service + " " + c.action + " " + formOf(told)
	if _, was := seen.Load(form); was {
		return nil
	}
	output, err := c.replay(answer)
	if err != nil {
		return err
	}
	var heard []string
	for _, v := range valuesOf(reflect.ValueOf(output)) {
		heard = append(heard, v.text)
	}
	for _, l := range told {
		i := slices.Index(heard, l.text)
		if i < 0 {
			return fmt.Errorf("the SDK does not read %s, %q, or not there", l.path, l.text)
		}
		heard = slices.Delete(heard, i, i+1)
	}
	seen.Store(form, true)
	return nil
}

// formOf are the places that an answer has values at, each once.
func formOf(all []leaf) string {
	var paths []string
	for _, l := range all {
		paths = append(paths, l.path)
	}
	sort.Strings(paths)
	return strings.Join(slices.Compact(paths), " ")
}

// replay has the SDK read an answer.
func (c *call) replay(answer []byte) (any, error) {
	given := aws.Config{
		Region:      "us-east-1",
		Credentials: aws.AnonymousCredentials{},
		Retryer:     func() aws.Retryer { return aws.NopRetryer{} },
		HTTPClient: answers(func(*http.Request) (*http.Response, error) {
			return &http.Response{
				StatusCode: http.StatusOK,
				Header:     http.Header{"Content-Type": {c.answers}},
				Body:       io.NopCloser(bytes.NewReader(answer)),
			}, nil
		}),
		// What must be said in a call is not said here.
		APIOptions: []func(*middleware.Stack) error{func(stack *middleware.Stack) error {
			_, _ = stack.Initialize.Remove("OperationInputValidation")
			return nil
		}},
	}
	client := map[string]func() any{
		"ec2":     func() any { return ec2.NewFromConfig(given) },
		"sts":     func() any { return sts.NewFromConfig(given) },
		"iam":     func() any { return iam.NewFromConfig(given) },
		"ecr":     func() any { return ecr.NewFromConfig(given) },
		"pricing": func() any { return pricing.NewFromConfig(given) },

		"servicequotas": func() any { return servicequotas.NewFromConfig(given) },
	}[c.service]()
	method := reflect.ValueOf(client).MethodByName(c.action)
	if !method.IsValid() {
		return nil, errors.New("the SDK has no such call")
	}
	input := reflect.New(method.Type().In(1).Elem())
	results := method.Call([]reflect.Value{reflect.ValueOf(context.Background()), input})
	if err, is := results[1].Interface().(error); is {
		return nil, fmt.Errorf("the SDK cannot read the answer: %w", err)
	}
	return results[0].Interface(), nil
}

type answers func(*http.Request) (*http.Response, error)

func (a answers) Do(r *http.Request) (*http.Response, error) { return a(r) }

// leaf is a value of an answer, in a form that all protocols have, and where it stands.
type leaf struct{ path, text string }

// plain is the one form of a number, and of a time, in seconds since 1970.
func plain(text string) string {
	if at, err := time.Parse(time.RFC3339Nano, text); err == nil {
		return seconds(at)
	}
	if n, err := strconv.ParseFloat(text, 64); err == nil {
		return strconv.FormatFloat(n, 'g', -1, 64)
	}
	return text
}

func seconds(at time.Time) string {
	return strconv.FormatFloat(float64(at.UnixMilli())/1000, 'g', -1, 64)
}

// ofXML are the values of an answer, but for what is said of the call: its ID, and that it was carried out.
func ofXML(answer []byte) (all []leaf, err error) {
	var path []string
	var text strings.Builder
	inner := false // the element has others
	for d := xml.NewDecoder(bytes.NewReader(answer)); ; {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			return all, nil
		}
		if err != nil {
			return nil, fmt.Errorf("read the answer: %w", err)
		}
		switch token := token.(type) {
		case xml.StartElement:
			path, inner = append(path, token.Name.Local), false
			text.Reset()
		case xml.CharData:
			text.Write(token)
		case xml.EndElement:
			value := strings.TrimSpace(text.String())
			if !inner && value != "" && !strings.EqualFold(token.Name.Local, "requestId") && token.Name.Local != "return" {
				all = append(all, leaf{strings.Join(path, ">"), plain(value)})
			}
			path, inner = path[:len(path)-1], true
			text.Reset()
		}
	}
}

// ofJSON are the values of an answer.
func ofJSON(answer []byte) ([]leaf, error) {
	var of func(path string, v any) []leaf
	of = func(path string, v any) (all []leaf) {
		switch v := v.(type) {
		case map[string]any:
			for key, inner := range v {
				all = append(all, of(path+">"+key, inner)...)
			}
		case []any:
			for _, inner := range v {
				all = append(all, of(path+">item", inner)...)
			}
		case nil:
		default:
			if text := plain(fmt.Sprint(v)); text != "" {
				all = append(all, leaf{path, text})
			}
		}
		return all
	}
	var v any
	d := json.NewDecoder(bytes.NewReader(answer))
	d.UseNumber()
	if err := d.Decode(&v); err != nil {
		return nil, fmt.Errorf("read the answer: %w", err)
	}
	return of("", v), nil
}

// valuesOf are the values of what the SDK returns, but for what it says of the call.
func valuesOf(v reflect.Value) (all []leaf) {
	if at, is := v.Interface().(time.Time); is {
		return []leaf{{text: seconds(at)}}
	}
	switch v.Kind() {
	case reflect.Pointer, reflect.Interface:
		if !v.IsNil() {
			return valuesOf(v.Elem())
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if f := v.Type().Field(i); f.IsExported() && f.Name != "ResultMetadata" {
				all = append(all, valuesOf(v.Field(i))...)
			}
		}
	case reflect.Slice:
		for i := range v.Len() {
			all = append(all, valuesOf(v.Index(i))...)
		}
	case reflect.Map:
		for each := v.MapRange(); each.Next(); {
			all = append(all, valuesOf(each.Value())...)
		}
	default:
		if text := plain(fmt.Sprint(v.Interface())); text != "" {
			all = append(all, leaf{text: text})
		}
	}
	return all
}
