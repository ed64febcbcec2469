// Package journal owns a log that a test reads while others write it. It must not know who writes.
package journal

import (
	"strings"
	"sync"
)

// Log is what was written. It is safe for concurrent use. The zero value is empty.
type Log struct {
	mu   sync.Mutex
	text strings.Builder
}

// Write implements io.Writer.
func (l *Log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

// String returns all that was written.
func (l *Log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// Says reports whether it has these words.
func (l *Log) Says(words string) bool { return strings.Contains(l.String(), words) }

// Lines returns how many lines were ended.
func (l *Log) Lines() int { return strings.Count(l.String(), "\n") }
