package ec2

import (
	"context"
	"crypto/md5" //nolint:gosec // the protocol's checksum
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"
)

const (
	// sqsTarget begins the header that names an action of SQS, in its JSON protocol.
	sqsTarget = "AmazonSQS."
	// mostMessages, mostWait and mostHidden bound a receipt. Source: SQS API reference,
	// "ReceiveMessage".
	mostMessages, mostWait, mostHidden = 10, 20 * time.Second, 12 * time.Hour
)

// QueueFaults are what goes wrong with the account's queue.
type QueueFaults struct {
	// Doubled gives each message a second time, as a standard queue may.
	Doubled bool
	// LostDeletes is how many deletions are confirmed next and not done.
	LostDeletes int
	// FailedDeletes is how many deletions are refused next.
	FailedDeletes int
	// Throttled is how many calls are refused next.
	Throttled int
	// Impatient answers at once where there is nothing, instead of waiting.
	Impatient bool
	// BadChecksums has each message come with a checksum that is not its own.
	BadChecksums bool
}

// queue is the account's, under Model.mu.
type queue struct {
	messages []*message
	sent     int           // ever
	news     chan struct{} // closed with the next message
	faults   QueueFaults
}

// message is one of a queue.
type message struct {
	id     int
	body   string
	hidden time.Time // until then
	given  int       // how often
}

// receipt is what deletes a message: of the last time that it was given.
func (o *message) receipt() string { return fmt.Sprintf("receipt-%d-%d", o.id, o.given) }

// Detail is what an event says beside what all of them do.
type Detail map[string]any

// FailQueue changes what goes wrong with the queue.
func (m *Model) FailQueue(f QueueFaults) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.queue.faults = f
}

// QueueURL is that of the account's queue, at an API.
func (m *Model) QueueURL(api string) string { return api + "/" + m.cfg.Account + "/" + m.cfg.Queue }

// Send puts an event of EventBridge's into the queue, if there is one.
func (m *Model) Send(source, kind string, detail Detail) error {
	if m.cfg.Queue == "" {
		return nil
	}
	body, err := json.Marshal(map[string]any{
		"version":     "0",
		"id":          requestID,
		"source":      source,
		"detail-type": kind,
		"account":     m.cfg.Account,
		"region":      m.cfg.Region,
		"time":        m.now().UTC().Format(time.RFC3339),
		"detail":      detail,
	})
	if err != nil {
		return fmt.Errorf("send the event %q of %s: %w", kind, source, err)
	}
	m.SendText(string(body))
	return nil
}

// SendText puts any text into the queue, as whoever may write to it can.
func (m *Model) SendText(body string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.queue.sent++
	m.queue.messages = append(m.queue.messages, &message{id: m.queue.sent, body: body})
	close(m.queue.news)
	m.queue.news = make(chan struct{})
}

// Queued is how many messages are not deleted.
func (m *Model) Queued() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.queue.messages)
}

// serveSQS answers a call of SQS.
func (m *Model) serveSQS(w http.ResponseWriter, r *http.Request) {
	action := strings.TrimPrefix(r.Header.Get("X-Amz-Target"), sqsTarget)
	m.count(action)
	answer, err := m.callSQS(r, action)
	w.Header().Set("Content-Type", "application/x-amz-json-1.0")
	if err != nil {
		e := apiErrorOf(err)
		w.WriteHeader(e.status)
		answer = map[string]string{"__type": "com.amazonaws.sqs#" + e.code, "message": e.message}
	}
	_ = json.NewEncoder(w).Encode(answer) // or whoever asked is gone
}

// sqsCall is what all calls of SQS that the model knows may have.
type sqsCall struct {
	QueueName           string
	QueueURL            string `json:"QueueUrl"`
	MaxNumberOfMessages int
	WaitTimeSeconds     int
	VisibilityTimeout   int
	Entries             []struct{ ID, ReceiptHandle string }
}

func (m *Model) callSQS(r *http.Request, action string) (any, error) {
	var in sqsCall
	read := json.NewDecoder(r.Body)
	read.DisallowUnknownFields()
	if err := read.Decode(&in); err != nil {
		return nil, bad("InvalidParameterValue", "%v", err)
	}
	policy, err := m.policyOf(r.Header.Get("Authorization"), r.Header.Get(sessionHeader))
	if err != nil {
		return nil, &apiError{http.StatusForbidden, "InvalidClientTokenId", "The security token included in the request is invalid."}
	}
	right := map[string]string{
		"GetQueueUrl":        "sqs:GetQueueUrl",
		"ReceiveMessage":     "sqs:ReceiveMessage",
		"DeleteMessageBatch": "sqs:DeleteMessage",
	}[action]
	if right == "" {
		return nil, bad("UnsupportedOperation", "The model does not know %s of SQS.", action)
	}
	name := in.QueueName
	if action != "GetQueueUrl" {
		name = in.QueueURL[strings.LastIndexByte(in.QueueURL, '/')+1:]
	}
	asked := &request{ctx: r.Context(), action: action, policy: policy}
	if m.may(asked, right, m.arnOf("sqs", m.cfg.Region, m.cfg.Account, name), nil) != nil {
		return nil, &apiError{http.StatusForbidden, "AccessDeniedException", "User is not authorized to perform: " + right + " on " + name}
	}
	if m.throttlesQueue() {
		return nil, bad("RequestThrottled", "The request was denied due to request throttling.")
	}
	if m.cfg.Queue == "" || name != m.cfg.Queue || action != "GetQueueUrl" && !strings.HasSuffix(in.QueueURL, m.QueueURL("")) {
		return nil, bad("QueueDoesNotExist", "The specified queue does not exist.")
	}
	switch action {
	case "GetQueueUrl":
		return map[string]string{"QueueUrl": m.QueueURL("http://" + r.Host)}, nil
	case "ReceiveMessage":
		return m.receiveMessage(r.Context(), in)
	}
	return m.deleteMessages(in)
}

func (m *Model) throttlesQueue() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.queue.faults.Throttled == 0 {
		return false
	}
	m.queue.faults.Throttled--
	return true
}

// receiveMessage gives messages that are not hidden, and hides them; it waits for one if there is
// none.
func (m *Model) receiveMessage(ctx context.Context, in sqsCall) (any, error) {
	wait, hide := time.Duration(in.WaitTimeSeconds)*time.Second, time.Duration(in.VisibilityTimeout)*time.Second
	if n := in.MaxNumberOfMessages; n < 1 || n > mostMessages || wait < 0 || wait > mostWait || hide < 0 || hide > mostHidden {
		return nil, bad("InvalidParameterValue", "Value %d for MaxNumberOfMessages, %s for WaitTimeSeconds or %s for VisibilityTimeout is invalid.",
			n, wait, hide)
	}
	for end := m.now().Add(wait); ; {
		m.mu.Lock()
		all, news := m.giveMessages(in.MaxNumberOfMessages, hide), m.queue.news
		over := m.queue.faults.Impatient || !m.now().Before(end)
		next := end // or when one is shown again
		for _, one := range m.queue.messages {
			if one.hidden.Before(next) {
				next = one.hidden
			}
		}
		m.mu.Unlock()
		if len(all) > 0 {
			return map[string]any{"Messages": all}, nil
		}
		if over || ctx.Err() != nil {
			return map[string]any{}, nil
		}
		timer := m.clock().NewTimer(next.Sub(m.now()))
		select {
		case <-news:
		case <-timer.C():
		case <-ctx.Done():
		}
		timer.Stop()
	}
}

// givenMessage is one as SQS gives it.
type givenMessage struct {
	MessageID     string `json:"MessageId"`
	ReceiptHandle string
	MD5OfBody     string
	Body          string
}

// giveMessages is called under mu.
func (m *Model) giveMessages(most int, hide time.Duration) (all []givenMessage) {
	now := m.now()
	for _, one := range m.queue.messages {
		if len(all) == most || now.Before(one.hidden) {
			continue
		}
		one.given++
		if !m.queue.faults.Doubled || one.given > 1 {
			one.hidden = now.Add(hide)
		}
		sum := md5.Sum([]byte(one.body)) //nolint:gosec // the protocol's checksum
		if m.queue.faults.BadChecksums {
			sum[0]++
		}
		all = append(all, givenMessage{fmt.Sprint(one.id), one.receipt(), hex.EncodeToString(sum[:]), one.body})
	}
	return all
}

// deleteMessages deletes those whose receipts are of the last time that they were given; others
// are confirmed as well.
func (m *Model) deleteMessages(in sqsCall) (any, error) {
	if n := len(in.Entries); n < 1 || n > mostMessages {
		return nil, bad("TooManyEntriesInBatchRequest", "%d entries: want 1 to %d", n, mostMessages)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	done, failed := []map[string]string{}, []map[string]any{}
	for _, e := range in.Entries {
		switch f := &m.queue.faults; {
		case f.FailedDeletes > 0:
			f.FailedDeletes--
			failed = append(failed, map[string]any{"Id": e.ID, "Code": "InternalError", "Message": "words", "SenderFault": false})
			continue
		case f.LostDeletes > 0:
			f.LostDeletes--
		case f.Doubled && strings.HasSuffix(e.ReceiptHandle, "-1"):
			// The copy that is given again was on a server that did not hear of it.
		default:
			m.queue.messages = slices.DeleteFunc(m.queue.messages, func(one *message) bool { return one.receipt() == e.ReceiptHandle })
		}
		done = append(done, map[string]string{"Id": e.ID})
	}
	return map[string]any{"Successful": done, "Failed": failed}, nil
}
