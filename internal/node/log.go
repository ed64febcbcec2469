package node

import (
	"context"
	"fmt"
	"log/slog"

	vklog "github.com/virtual-kubelet/virtual-kubelet/log"
)

// vkLogger lets Virtual Kubelet's node controller write to slog. What it says
// when it is being stopped (each request that is cut off is an error to it) is
// for debugging only.
type vkLogger struct {
	stopping context.Context
	log      *slog.Logger
}

var _ vklog.Logger = vkLogger{}

func (l vkLogger) write(level slog.Level, text string) {
	if l.stopping.Err() != nil {
		level = slog.LevelDebug
	}
	l.log.Log(l.stopping, level, text)
}

func (l vkLogger) Debug(a ...any)            { l.write(slog.LevelDebug, fmt.Sprint(a...)) }
func (l vkLogger) Debugf(f string, a ...any) { l.write(slog.LevelDebug, fmt.Sprintf(f, a...)) }
func (l vkLogger) Info(a ...any)             { l.write(slog.LevelInfo, fmt.Sprint(a...)) }
func (l vkLogger) Infof(f string, a ...any)  { l.write(slog.LevelInfo, fmt.Sprintf(f, a...)) }
func (l vkLogger) Warn(a ...any)             { l.write(slog.LevelWarn, fmt.Sprint(a...)) }
func (l vkLogger) Warnf(f string, a ...any)  { l.write(slog.LevelWarn, fmt.Sprintf(f, a...)) }
func (l vkLogger) Error(a ...any)            { l.write(slog.LevelError, fmt.Sprint(a...)) }
func (l vkLogger) Errorf(f string, a ...any) { l.write(slog.LevelError, fmt.Sprintf(f, a...)) }

// Fatal does not end the process: that is for main to decide.
func (l vkLogger) Fatal(a ...any)            { l.Error(a...) }
func (l vkLogger) Fatalf(f string, a ...any) { l.Errorf(f, a...) }

func (l vkLogger) WithField(k string, v any) vklog.Logger {
	return vkLogger{l.stopping, l.log.With(k, v)}
}

func (l vkLogger) WithFields(fields vklog.Fields) vklog.Logger {
	args := make([]any, 0, 2*len(fields))
	for k, v := range fields {
		args = append(args, k, v)
	}
	return vkLogger{l.stopping, l.log.With(args...)}
}

func (l vkLogger) WithError(err error) vklog.Logger { return l.WithField("err", err) }
