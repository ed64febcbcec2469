package aws

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/sts"
	"github.com/aws/smithy-go"
	"github.com/aws/smithy-go/middleware"

	"github.com/elotl/kip/internal/cloud"
)

const (
	// refusalKept is how long what STS has decoded counts for the same call, and maxRefusals how
	// many are decoded in that time.
	refusalKept, maxRefusals = time.Minute, 10
	// refusalPause is how long STS is not asked once it has said that Kip may not.
	refusalPause = time.Hour
	// refusalTimeout bounds a call, for whose answer the error waits.
	refusalTimeout = 5 * time.Second
	// maxResource bounds what is shown of a resource, in bytes.
	maxResource = 256
)

// refusals has STS decode what EC2 refuses for want of a right.
type refusals struct {
	sts *sts.Client
	cfg Config

	mu     sync.Mutex
	known  map[[sha256.Size]byte]known // by what was asked for
	silent time.Time                   // STS is not asked before
	told   bool                        // that Kip may not ask it
}

// known is what STS has said of a call; "" where it has not, or not yet.
type known struct {
	text  string
	until time.Time
}

func newRefusals(client *sts.Client, cfg Config) *refusals {
	return &refusals{sts: client, cfg: cfg, known: map[[sha256.Size]byte]known{}}
}

// refusalError is an error of EC2's of which STS has said what it means.
type refusalError struct {
	text string
	err  error
}

func (e *refusalError) Error() string { return e.text + ": " + e.err.Error() }
func (e *refusalError) Unwrap() error { return e.err }

// add has the refusals of each call of a client decoded.
func (r *refusals) add(stack *middleware.Stack) error {
	return stack.Initialize.Add(middleware.InitializeMiddlewareFunc("DecodeRefusals", func(
		ctx context.Context, in middleware.InitializeInput, next middleware.InitializeHandler,
	) (middleware.InitializeOutput, middleware.Metadata, error) {
		out, metadata, err := next.HandleInitialize(ctx, in)
		if text := r.meaning(ctx, in.Parameters, err); text != "" {
			err = &refusalError{text, err}
		}
		return out, metadata, err
	}), middleware.Before)
}

// meaning is what STS says of an error of a call; "" where it says nothing.
func (r *refusals) meaning(ctx context.Context, call any, err error) string {
	said, ok := errors.AsType[smithy.APIError](err)
	if !ok {
		return ""
	}
	open, message, has := strings.Cut(said.ErrorMessage(), encoded)
	if message = strings.TrimSpace(message); !has || message == "" {
		return ""
	}
	of := kindOf(call, open)
	text, ask := r.look(of)
	if !ask {
		return text
	}
	ctx, cancel := context.WithTimeout(ctx, refusalTimeout)
	defer cancel()
	out, err := r.sts.DecodeAuthorizationMessage(ctx, &sts.DecodeAuthorizationMessageInput{EncodedMessage: aws.String(message)})
	if err != nil {
		r.failed(classifyBeside(err))
		return ""
	}
	if text = readRefusal(aws.ToString(out.DecodedMessage)); text == "" {
		r.cfg.Log.Warn("what STS has decoded of a refusal cannot be read: want its action and resource")
		return ""
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.told = false
	r.known[of] = known{text, r.known[of].until}
	return text
}

// look returns what is known of a call, or says that STS is to be asked, which is then noted: once
// for each kind of call in a while, however many are refused, and not for many kinds.
func (r *refusals) look(of [sha256.Size]byte) (text string, ask bool) {
	now := r.cfg.Clock.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	maps.DeleteFunc(r.known, func(_ [sha256.Size]byte, k known) bool { return !now.Before(k.until) })
	if k, is := r.known[of]; is {
		return k.text, false
	}
	if now.Before(r.silent) || len(r.known) >= maxRefusals {
		return "", false
	}
	r.known[of] = known{until: now.Add(refusalKept)}
	return "", true
}

// failed notes that STS decoded nothing. That Kip may not ask it is told once.
func (r *refusals) failed(err error) {
	if !errors.Is(err, cloud.ErrUnauthorised) {
		r.cfg.Log.Warn("have STS decode why EC2 refuses a call", "err", err)
		return
	}
	r.mu.Lock()
	told := r.told
	r.told, r.silent = true, r.cfg.Clock.Now().Add(refusalPause)
	r.mu.Unlock()
	if !told {
		r.cfg.Log.Warn("Kip may not have STS decode why EC2 refuses a call: want the right to sts:DecodeAuthorizationMessage", "err", err)
	}
}

// kindOf is the same for calls that ask for the same, and are refused in the same words: without
// what each launch has of its own.
func kindOf(call any, words string) [sha256.Size]byte {
	if launch, is := call.(*ec2.RunInstancesInput); is {
		same := *launch
		same.ClientToken, same.UserData, same.MaxCount, same.TagSpecifications = nil, nil, nil, nil
		call = &same
	}
	text, err := json.Marshal(call)
	if err != nil {
		text = nil // its words say what it is
	}
	return sha256.Sum256(fmt.Appendf(text, " of %T: %s", call, words))
}

// refusalMessage is what STS decodes, as far as it is shown: it also has who asked, and all
// conditions. Source: STS API reference, "DecodeAuthorizationMessage".
type refusalMessage struct {
	ExplicitDeny bool `json:"explicitDeny"`
	Matched      struct {
		Items []struct {
			ID     string `json:"statementId"`
			Effect string `json:"effect"`
		} `json:"items"`
	} `json:"matchedStatements"`
	Context struct {
		Action   string `json:"action"`
		Resource string `json:"resource"`
	} `json:"context"`
}

// The forms of what is shown. Sources: IAM User Guide, "IAM JSON policy elements: Action" and "Sid".
var (
	actionForm    = regexp.MustCompile(`^[a-z0-9-]{1,64}:[A-Za-z0-9]{1,128}$`)
	statementForm = regexp.MustCompile(`^[A-Za-z0-9]{1,128}$`)
)

// readRefusal says what is refused, and whether a statement denies it or none allows it; "" for a
// message that does not tell.
func readRefusal(text string) string {
	var m refusalMessage
	if err := json.Unmarshal([]byte(text), &m); err != nil || !actionForm.MatchString(m.Context.Action) {
		return ""
	}
	resource := cmp.Or(m.Context.Resource, "*")
	shown := func(r rune) rune { // what the name of a resource is made of
		if r <= ' ' || r > '~' {
			return '?'
		}
		return r
	}
	what := m.Context.Action + " on " + strings.Map(shown, resource[:min(len(resource), maxResource)])
	if !m.ExplicitDeny {
		what = "no policy allows " + what
		if sids := statementsFor(m.Context.Action, resource); len(sids) > 0 {
			what += "; see " + strings.Join(sids, ", ") + " in " + permissionsPage
		}
		return what
	}
	for _, s := range m.Matched.Items {
		if strings.EqualFold(s.Effect, "deny") && statementForm.MatchString(s.ID) {
			return what + " is denied by statement " + s.ID
		}
	}
	return what + " is denied by a statement without a name"
}
