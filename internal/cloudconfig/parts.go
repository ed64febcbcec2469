package cloudconfig

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"mime"
	"mime/multipart"
	"net/textproto"
	"strings"
)

// Kind is what a part of user data is.
type Kind string

const (
	KindConfig Kind = "text/cloud-config"
	KindScript Kind = "text/x-shellscript"
)

// Part is one of user data.
type Part struct {
	// Name is the file's, and with more than one part its place, for people.
	Name    string
	Kind    Kind
	Content []byte
}

// maxParts is more than anybody makes.
const maxParts = 64

// first lines by which cloud-init knows what something is.
const (
	configLine = "#cloud-config"
	scriptLine = "#!"
)

// notTaken are the kinds of cloud-init that Kip does not carry out, by their first line.
var notTaken = []string{
	"#cloud-config-archive", "#cloud-boothook", "#include-once", "#include", "#part-handler", "#upstart-job", "#cloud-config-jsonp",
	"## template:",
}

// IsPacked says that user data is compressed or has several parts: only then Parts has
// anything to do with it.
func IsPacked(data []byte) bool { return isGzip(data) || isMultipart(data) }

// Parts takes user data apart: a #cloud-config, a script, either of them compressed by
// gzip, or several in a MIME multi-part document. Together they have at most limit bytes. The
// name is the file's, for errors, which quote no content but the first line's kind.
func Parts(name string, data []byte, limit int) ([]Part, error) {
	return takeApart(name, data, limit, false)
}

// KnownParts is Parts of user data that somebody else has put together: what of a multi-part
// document it does not know, or cannot read, is left out, and so is a part with more than limit
// bytes.
func KnownParts(name string, data []byte, limit int) ([]Part, error) {
	return takeApart(name, data, limit, true)
}

func takeApart(name string, data []byte, limit int, onlyKnown bool) ([]Part, error) {
	data, err := inflate(data, limit)
	if err != nil {
		return nil, &Error{File: name, Line: 1, Problem: err.Error()}
	}
	if isMultipart(data) {
		return multi(name, data, limit, onlyKnown)
	}
	kind, err := kindOf(data)
	if err != nil {
		return nil, &Error{File: name, Line: 1, Problem: err.Error()}
	}
	return []Part{{Name: name, Kind: kind, Content: data}}, nil
}

// kindOf knows a part by its first line.
func kindOf(data []byte) (Kind, error) {
	line, _, _ := bytes.Cut(data, []byte("\n"))
	first := strings.TrimRight(string(line), " \t\r")
	switch {
	case first == configLine:
		return KindConfig, nil
	case strings.HasPrefix(first, scriptLine):
		return KindScript, nil
	}
	for _, other := range notTaken {
		if strings.HasPrefix(first, other) {
			return "", fmt.Errorf("%s is a kind of cloud-init that Kip does not carry out: want %s, or a script that begins with %s",
				other, configLine, scriptLine)
		}
	}
	return "", fmt.Errorf("the first line is neither %s nor an interpreter such as #!/bin/sh", configLine)
}

// isGzip says that data begins as a file of gzip does.
func isGzip(data []byte) bool { return bytes.HasPrefix(data, []byte{0x1f, 0x8b}) }

// inflate returns what gzip made of data, or data itself if that is not gzip's, of at most
// limit bytes.
func inflate(data []byte, limit int) ([]byte, error) {
	if isGzip(data) {
		r, err := gzip.NewReader(bytes.NewReader(data))
		if err != nil {
			return nil, fmt.Errorf("it is not valid gzip: %w", err)
		}
		if data, err = io.ReadAll(io.LimitReader(r, int64(limit)+1)); err != nil {
			return nil, fmt.Errorf("it is not valid gzip: %w", err)
		}
	}
	if len(data) > limit {
		return nil, fmt.Errorf("it unpacks to more than the %d bytes that are allowed", limit)
	}
	return data, nil
}

// isMultipart says that data begins with headers of MIME.
func isMultipart(data []byte) bool {
	line, _, _ := bytes.Cut(data, []byte("\n"))
	key, _, found := strings.Cut(string(line), ":")
	key = textproto.CanonicalMIMEHeaderKey(key)
	return found && (key == "Content-Type" || key == "Mime-Version")
}

// multi takes a multi-part document apart.
func multi(name string, data []byte, limit int, onlyKnown bool) ([]Part, error) {
	wrong := func(format string, args ...any) error {
		return &Error{File: name, Line: 1, Problem: fmt.Sprintf(format, args...)}
	}
	body := bufio.NewReader(bytes.NewReader(data))
	header, err := textproto.NewReader(body).ReadMIMEHeader()
	if err != nil {
		return nil, wrong("the headers of MIME are not valid")
	}
	kind, params, err := mime.ParseMediaType(header.Get("Content-Type"))
	if err != nil || !strings.HasPrefix(kind, "multipart/") || params["boundary"] == "" {
		return nil, wrong("Content-Type is not valid: want multipart/mixed with a boundary")
	}
	var parts []Part
	r := multipart.NewReader(body, params["boundary"])
	for n := 1; ; n++ {
		p, err := r.NextPart()
		switch {
		case errors.Is(err, io.EOF) && n == 1:
			return nil, wrong("there is no part between the boundaries")
		case errors.Is(err, io.EOF) && errors.Unwrap(err) == nil: // in another, the end comes before the last boundary
			return parts, nil
		case err != nil:
			return nil, wrong("part %d cannot be read: the document ends before its last boundary, or a header is not valid", n)
		case n > maxParts:
			return nil, wrong("there are more than %d parts", maxParts)
		}
		part, err := single(p, limit)
		switch {
		case err != nil && onlyKnown:
			continue
		case err != nil:
			return nil, wrong("part %d: %v", n, err)
		case !onlyKnown: // who takes what others made takes each part by itself
			limit -= len(part.Content)
		}
		part.Name = fmt.Sprintf("%s, part %d", name, n)
		parts = append(parts, part)
	}
}

// single reads one part of a multi-part document.
func single(p *multipart.Part, limit int) (Part, error) {
	var body io.Reader = p
	switch encoding := strings.ToLower(p.Header.Get("Content-Transfer-Encoding")); encoding {
	case "", "7bit", "8bit", "binary", "quoted-printable": // the last one the reader has undone
	case "base64":
		body = base64.NewDecoder(base64.StdEncoding, p)
	default:
		return Part{}, errors.New("Content-Transfer-Encoding is not valid: want 7bit, 8bit, binary, quoted-printable or base64")
	}
	data, err := io.ReadAll(io.LimitReader(body, int64(limit)+1))
	if err != nil {
		return Part{}, errors.New("it is cut off, or not in the encoding that it names")
	}
	if data, err = inflate(data, limit); err != nil {
		return Part{}, err
	}
	if isMultipart(data) {
		return Part{}, errors.New("it is a multi-part document itself: want its parts beside the others")
	}
	kind, err := kindOf(data)
	media := ""
	if says := p.Header.Get("Content-Type"); says != "" {
		var bad error
		if media, _, bad = mime.ParseMediaType(says); bad != nil {
			return Part{}, errors.New("Content-Type is not valid")
		}
	}
	if media == string(KindConfig) && err != nil && !bytes.HasPrefix(data, []byte("#")) {
		kind, err = KindConfig, nil // its header says so
	}
	if err != nil {
		return Part{}, err
	}
	switch media {
	case "", string(kind), "text/plain", "application/gzip", "application/x-gzip", "application/octet-stream":
		return Part{Kind: kind, Content: data}, nil
	}
	return Part{}, fmt.Errorf("Content-Type %.60q does not fit what begins with %s: want %s", media, begins(kind), kind)
}

// begins is the first line of a kind.
func begins(k Kind) string {
	if k == KindScript {
		return scriptLine
	}
	return configLine
}
