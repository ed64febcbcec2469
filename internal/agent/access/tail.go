package access

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

const (
	// defaultTail is how many lines of a log are returned if nobody says, maxTail the most.
	defaultTail, maxTail = 200, 100_000
	// maxLog is the most of a log that is returned, in bytes.
	maxLog = 4 << 20
)

func tailOf(asked string) (int, error) {
	if asked == "" {
		return defaultTail, nil
	}
	n, err := strconv.Atoi(asked)
	if err != nil || n < 1 || n > maxTail {
		return 0, fmt.Errorf("tail is %.20q: want a number of lines from 1 to %d", asked, maxTail)
	}
	return n, nil
}

// lastLines returns the last lines of a log and, where it is short, of the one before it (NAME.1). The error is fs.ErrNotExist
// if there is neither.
func lastLines(file string, lines int) ([]byte, error) {
	text, err := end(file, maxLog)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	if bytes.Count(text, []byte("\n")) < lines && len(text) < maxLog {
		before, missing := end(file+".1", maxLog-len(text))
		if missing == nil {
			text, err = append(before, text...), nil
		}
	}
	if err != nil {
		return nil, err
	}
	from := len(text)
	if from > 0 && text[from-1] == '\n' {
		from--
	}
	for range lines {
		if from = bytes.LastIndexByte(text[:from], '\n'); from < 0 {
			return text, nil
		}
	}
	return text[from+1:], nil
}

// end returns the last bytes of a file. A pod may have its folder by hostPath: a link, or what is no file, is refused.
func end(file string, most int) ([]byte, error) {
	f, err := os.OpenFile(file, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is not a file", file)
	}
	if over := info.Size() - int64(most); over > 0 {
		if _, err := f.Seek(over, io.SeekStart); err != nil {
			return nil, err
		}
	}
	return io.ReadAll(io.LimitReader(f, int64(most)))
}
