package vm

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"time"
)

// maxMessage bounds one message of a monitor, in bytes. A machine may have taken over its
// QEMU.
const maxMessage = 1 << 20

// AnswerLimit is how long the monitor of a machine that runs is waited for, each time: on a
// busy host it takes some seconds, and one that was taken over may never answer.
const AnswerLimit = 30 * time.Second

// Monitor is a connection to the monitor of a machine (QMP). A machine has one at a time:
// the next waits until it is closed.
type Monitor struct {
	conn    net.Conn
	limit   time.Duration
	answers *bufio.Scanner
}

// Refused is the answer of a monitor that does not do what it was told.
type Refused struct {
	Command string
	Class   string `json:"class"` // such as DeviceNotFound
	Desc    string `json:"desc"`
}

func (e *Refused) Error() string { return fmt.Sprintf("QEMU refused %s: %s", e.Command, e.Desc) }

// Dial connects to the monitor that listens at a path, which is at most 107 characters long.
// Its greeting and each of its answers are waited for until ctx ends, and at most for limit; 0 for no
// other limit. Close it.
func Dial(ctx context.Context, path string, limit time.Duration) (*Monitor, error) {
	conn, err := (&net.Dialer{Timeout: limit}).DialContext(ctx, "unix", path)
	if err != nil {
		return nil, fmt.Errorf("reach QEMU's monitor: %w", err)
	}
	m := &Monitor{conn: conn, limit: limit, answers: bufio.NewScanner(conn)}
	m.answers.Buffer(make([]byte, 0, 4<<10), maxMessage)
	if err := m.greet(ctx); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return m, nil
}

// greet hears QEMU's greeting, and gives the order before which it takes no other.
func (m *Monitor) greet(ctx context.Context) error {
	if err := m.within(ctx, func() error { _, err := m.next(); return err }); err != nil {
		return fmt.Errorf("hear from QEMU's monitor: %w", err)
	}
	return m.Do(ctx, "qmp_capabilities", nil, nil)
}

// Close ends the connection.
func (m *Monitor) Close() error { return m.conn.Close() }

// message is one of the monitor's. An event is neither a return nor an error.
type message struct {
	Return json.RawMessage `json:"return"`
	Error  *Refused        `json:"error"`
}

// Do gives an order, with arguments that are encoded as JSON, or none, and decodes what it
// returns into result, if that is not nil. The error is a *Refused if QEMU refused.
func (m *Monitor) Do(ctx context.Context, command string, arguments, result any) error {
	err := m.within(ctx, func() error {
		order := map[string]any{"execute": command}
		if arguments != nil {
			order["arguments"] = arguments
		}
		if err := json.NewEncoder(m.conn).Encode(order); err != nil {
			return err
		}
		for {
			answer, err := m.next()
			if err != nil {
				return err
			}
			switch {
			case answer.Error != nil:
				answer.Error.Command = command
				return answer.Error
			case answer.Return == nil: // an event
			case result != nil:
				return json.Unmarshal(answer.Return, result)
			default:
				return nil
			}
		}
	})
	var refused *Refused
	if err != nil && !errors.As(err, &refused) {
		err = fmt.Errorf("ask QEMU for %s: %w", command, err)
	}
	return err
}

// next is the next message.
func (m *Monitor) next() (message, error) {
	var msg message
	if !m.answers.Scan() {
		if err := m.answers.Err(); err != nil {
			return msg, err
		}
		return msg, errors.New("it has ended")
	}
	return msg, json.Unmarshal(m.answers.Bytes(), &msg)
}

// within bounds a conversation by ctx and the limit.
func (m *Monitor) within(ctx context.Context, talk func() error) error {
	if m.limit > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, m.limit)
		defer cancel()
	}
	// A deadline in the past ends what waits.
	stop := context.AfterFunc(ctx, func() { _ = m.conn.SetDeadline(time.Unix(1, 0)) })
	err := talk()
	if !stop() && err != nil {
		return errors.Join(ctx.Err(), err)
	}
	return err
}
