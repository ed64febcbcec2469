package aws

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/elotl/kip/internal/cloud"
)

const (
	// queueBatch is how many messages SQS gives at most, and queueWait how long it waits for one.
	// Source: SQS API reference, "ReceiveMessage".
	queueBatch, queueWait = 10, 20 * time.Second
	// queueHidden is how long a message that was given is shown to nobody else: long enough to
	// pass it on, short enough that the next Kip hears within the notice what one that died had.
	queueHidden = 30 * time.Second
	// queueTimeout bounds one call.
	queueTimeout = queueWait + 10*time.Second
	// leastPause is the time from one receipt to the next, and idlePause where it gave nothing,
	// whatever queue answers without waiting. Thus at most a hundred messages a second are read.
	leastPause, idlePause = 100 * time.Millisecond, time.Second
	// firstPause and longestPause are how long a queue that fails is left alone.
	firstPause, longestPause = 5 * time.Second, time.Minute
	// failuresTold is after how many failures in a row one is told again.
	failuresTold = 20
	// maxEvent bounds a message in bytes (SQS API reference, "SendMessage": 1 MiB).
	maxEvent = 1 << 20
	// maxAffected bounds the instances of an event that are compared with Kip's own, each with all cells.
	// One that names more is taken to name some.
	maxAffected = 10
)

// What EC2 and AWS Health send. Sources: EC2 User Guide, "Automate Amazon EC2 using EventBridge";
// AWS Health User Guide, "Amazon EventBridge schema".
const (
	fromEC2, fromHealth = "aws.ec2", "aws.health"

	typeSpot  = "EC2 Spot Instance Interruption Warning"
	typeRisk  = "EC2 Instance Rebalance Recommendation"
	typeState = "EC2 Instance State-change Notification"

	healthEC2, healthScheduled = "EC2", "scheduledChange"
)

// event is one of EventBridge's, as far as Kip reads it. Its time is not read: what a message says
// is never more than a reason to ask.
type event struct {
	Source string          `json:"source"`
	Type   string          `json:"detail-type"`
	Region string          `json:"region"`
	Detail json.RawMessage `json:"detail"`
}

// said is what a message is about, and of which instances.
type said struct {
	about     cloud.Message
	instances []string
}

// readMessage reads a message of the queue of a region.
func readMessage(body, region string) (said, error) {
	foreign, unusable := said{about: cloud.MessageForeign}, said{about: cloud.MessageUnusable}
	if len(body) > maxEvent {
		return unusable, fmt.Errorf("it has %d bytes: want at most %d", len(body), maxEvent)
	}
	var e event
	if err := json.Unmarshal([]byte(body), &e); err != nil {
		return unusable, fmt.Errorf("it is no event of EventBridge: %w", err)
	}
	if e.Region != region {
		return foreign, nil
	}
	switch e.Source {
	case fromHealth:
		return readHealth(e)
	case fromEC2:
	default:
		return foreign, nil
	}
	var about struct {
		Instance string `json:"instance-id"`
		State    string `json:"state"`
	}
	var kind cloud.Message
	switch e.Type {
	case typeSpot:
		kind = cloud.MessageTakenBack
	case typeRisk:
		kind = cloud.MessageAtRisk
	case typeState:
		kind = cloud.MessageChanged
	default:
		return foreign, nil
	}
	if err := json.Unmarshal(e.Detail, &about); err != nil {
		return unusable, fmt.Errorf("the field detail of an event %q: %w", e.Type, err)
	}
	if about.Instance == "" {
		return unusable, fmt.Errorf("the field detail of an event %q has no instance-id", e.Type)
	}
	if e.Type == typeState && (about.State == "pending" || about.State == "running") {
		return foreign, nil
	}
	return said{kind, []string{about.Instance}}, nil
}

// readHealth reads an event of AWS Health.
func readHealth(e event) (said, error) {
	var about struct {
		Service  string `json:"service"`
		Category string `json:"eventTypeCategory"`
		Entities []struct {
			Value string `json:"entityValue"`
		} `json:"affectedEntities"`
	}
	if err := json.Unmarshal(e.Detail, &about); err != nil {
		return said{about: cloud.MessageUnusable}, fmt.Errorf("the field detail of an event of AWS Health: %w", err)
	}
	if about.Service != healthEC2 || about.Category != healthScheduled {
		return said{about: cloud.MessageForeign}, nil
	}
	is := said{about: cloud.MessageMaintenance}
	for _, entity := range about.Entities {
		is.instances = append(is.instances, entity.Value[strings.LastIndexByte(entity.Value, '/')+1:]) // of an ARN, too
	}
	return is, nil
}

// queue is an SQS queue of one Kip's own, to which rules of EventBridge send events.
type queue struct {
	cfg  Config
	sqs  *sqs.Client
	name string // a URL, or the name of a queue of Kip's own account
	url  string // "" until SQS has told it

	unusable int // messages, ever
}

// newQueue returns the queue of the configuration; nil without one.
func newQueue(sdk aws.Config, cfg Config) *queue {
	if cfg.InterruptionQueue == "" {
		return nil
	}
	q := &queue{cfg: cfg, name: cfg.InterruptionQueue}
	if strings.Contains(q.name, "://") {
		q.url = q.name
	}
	q.sqs = sqs.NewFromConfig(sdk, func(o *sqs.Options) {
		o.Region = cfg.Region
		o.HTTPClient = cfg.bound(o.HTTPClient)
		if at := cfg.endpointOf("SQS"); at != nil {
			o.BaseEndpoint = at
		}
		// One message whose checksum is wrong would hide the nine that came with it, again and again.
		o.DisableMessageChecksumValidation = true
	})
	return q
}

// listen passes on what messages say until ctx ends. What is wrong with the queue ends nothing
// else: EC2 is asked besides.
func (q *queue) listen(ctx context.Context, to chan<- said) {
	for failed := 0; ctx.Err() == nil; {
		began := q.cfg.Clock.Now()
		n, err := q.receive(ctx, to)
		pause := leastPause
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			pause = min(firstPause<<min(failed, 10), longestPause)
			if failed++; failed%failuresTold == 1 {
				q.cfg.Log.Warn("read the queue of interruptions, retrying; EC2 is asked besides", "queue", q.name, "failed", failed, "err", err)
			}
		case n == 0:
			pause, failed = idlePause, 0
		default:
			failed = 0
		}
		if err == nil {
			pause -= q.cfg.Clock.Since(began)
		}
		if pause <= 0 {
			continue
		}
		timer := q.cfg.Clock.NewTimer(pause)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C():
		}
	}
}

// receive takes what messages there are, waits for some if there are none, passes on what they
// say, and deletes them; it returns how many there were. All are deleted, those of other instances
// and those that cannot be read, too: the queue is this Kip's own, and what is left in it comes
// again until it is days old, in the way of what is new. A message of which Kip dies before it
// is deleted comes again, and asks for the same again.
func (q *queue) receive(ctx context.Context, to chan<- said) (n int, err error) {
	// The answer may wait to be passed on: that time is not the calls'.
	if err := q.find(ctx); err != nil {
		return 0, err
	}
	call, cancel := context.WithTimeout(ctx, queueTimeout)
	defer cancel()
	out, err := q.sqs.ReceiveMessage(call, &sqs.ReceiveMessageInput{
		QueueUrl:            aws.String(q.url),
		MaxNumberOfMessages: queueBatch,
		WaitTimeSeconds:     int32(queueWait / time.Second),
		VisibilityTimeout:   int32(queueHidden / time.Second),
	})
	if err != nil {
		if missing := (*types.QueueDoesNotExist)(nil); errors.As(err, &missing) && q.url != q.name {
			q.url = "" // it may have been made anew
		}
		return 0, fmt.Errorf("receive messages: %w", toldBySQS(err))
	}
	messages := out.Messages[:min(len(out.Messages), queueBatch)]
	handled := make([]types.DeleteMessageBatchRequestEntry, len(messages))
	for n, m := range messages {
		is, err := readMessage(aws.ToString(m.Body), q.cfg.Region)
		if err != nil {
			q.tellUnusable(err)
		}
		select {
		case to <- is:
		case <-ctx.Done():
			return 0, ctx.Err()
		}
		handled[n] = types.DeleteMessageBatchRequestEntry{Id: aws.String(strconv.Itoa(n)), ReceiptHandle: m.ReceiptHandle}
	}
	return len(messages), q.remove(ctx, handled)
}

// find asks for the URL of a queue that is configured by its name.
func (q *queue) find(ctx context.Context) error {
	if q.url != "" {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, queueTimeout)
	defer cancel()
	out, err := q.sqs.GetQueueUrl(ctx, &sqs.GetQueueUrlInput{QueueName: aws.String(q.name)})
	if err != nil {
		return fmt.Errorf("look for the queue %s: %w", q.name, toldBySQS(err))
	}
	if q.url = aws.ToString(out.QueueUrl); q.url == "" {
		return fmt.Errorf("look for the queue %s: SQS answered without a URL", q.name)
	}
	return nil
}

// remove deletes messages. One that is not deleted comes again.
func (q *queue) remove(ctx context.Context, handled []types.DeleteMessageBatchRequestEntry) error {
	if len(handled) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, queueTimeout)
	defer cancel()
	out, err := q.sqs.DeleteMessageBatch(ctx, &sqs.DeleteMessageBatchInput{QueueUrl: aws.String(q.url), Entries: handled})
	if err != nil {
		return fmt.Errorf("delete %d messages: %w", len(handled), toldBySQS(err))
	}
	if len(out.Failed) > 0 {
		why := out.Failed[0]
		text := aws.ToString(why.Code) + ": " + aws.ToString(why.Message)
		return fmt.Errorf("delete %d messages: %d are left: %s", len(handled), len(out.Failed), text[:min(len(text), maxMessage)])
	}
	return nil
}

// tellUnusable tells of the first message that cannot be read, and of ever fewer after it.
func (q *queue) tellUnusable(err error) {
	if q.unusable++; q.unusable&(q.unusable-1) != 0 {
		return
	}
	text := err.Error() // of the message it may repeat a lot
	q.cfg.Log.Warn("a message in the queue of interruptions cannot be read, and is deleted",
		"queue", q.name, "so_far", q.unusable, "err", text[:min(len(text), maxMessage)])
}

// toldBySQS is an error without what a person does not read.
func toldBySQS(err error) error {
	if said := saidOf(err); said != nil {
		return said
	}
	return err
}

// due is what is to be asked of EC2 now.
type due struct{ spot, maintenance bool }

// hear acts on a message. All that a message does by itself is that EC2 is asked sooner, and that
// a pod is told of a risk: who can write to the queue moves no pod and ends nothing.
func hear(is said, l cloud.Listener) (asks due) {
	mine := l.Mine
	if mine == nil {
		mine = func(string) bool { return true }
	}
	about := cloud.MessageForeign
	own := ""
	switch {
	case is.about == cloud.MessageUnusable:
		about = is.about
	case len(is.instances) > maxAffected:
		about = is.about
	default:
		for _, id := range is.instances {
			if mine(id) {
				own, about = cmp.Or(own, id), is.about
			}
		}
	}
	if l.Counted != nil {
		l.Counted(about)
	}
	switch about {
	case cloud.MessageTakenBack:
		asks.spot = true
	case cloud.MessageMaintenance:
		asks.maintenance = true
	case cloud.MessageAtRisk:
		if l.AtRisk != nil {
			l.AtRisk(own)
		}
	case cloud.MessageChanged:
		if l.Changed != nil {
			l.Changed(own)
		}
	}
	return asks
}
