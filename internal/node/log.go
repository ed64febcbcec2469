package node

import (
	"fmt"
	"log/slog"

	vklog "github.com/virtual-kubelet/virtual-kubelet/log"
)

// vkLogger lets Virtual Kubelet's node controller write to slog.
type vkLogger struct{ log *slog.Logger }

var _ vklog.Logger = vkLogger{}

func (l vkLogger) Debug(a ...any)            { l.log.Debug(fmt.Sprint(a...)) }
func (l vkLogger) Debugf(f string, a ...any) { l.log.Debug(fmt.Sprintf(f, a...)) }
func (l vkLogger) Info(a ...any)             { l.log.Info(fmt.Sprint(a...)) }
func (l vkLogger) Infof(f string, a ...any)  { l.log.Info(fmt.Sprintf(f, a...)) }
func (l vkLogger) Warn(a ...any)             { l.log.Warn(fmt.Sprint(a...)) }
func (l vkLogger) Warnf(f string, a ...any)  { l.log.Warn(fmt.Sprintf(f, a...)) }
func (l vkLogger) Error(a ...any)            { l.log.Error(fmt.Sprint(a...)) }
func (l vkLogger) Errorf(f string, a ...any) { l.log.Error(fmt.Sprintf(f, a...)) }

// Fatal does not end the process: that is for main to decide.
func (l vkLogger) Fatal(a ...any)            { l.log.Error(fmt.Sprint(a...)) }
func (l vkLogger) Fatalf(f string, a ...any) { l.log.Error(fmt.Sprintf(f, a...)) }

func (l vkLogger) WithField(k string, v any) vklog.Logger { return vkLogger{l.log.With(k, v)} }

func (l vkLogger) WithFields(fields vklog.Fields) vklog.Logger {
	args := make([]any, 0, 2*len(fields))
	for k, v := range fields {
		args = append(args, k, v)
	}
	return vkLogger{l.log.With(args...)}
}

func (l vkLogger) WithError(err error) vklog.Logger { return vkLogger{l.log.With("err", err)} }
