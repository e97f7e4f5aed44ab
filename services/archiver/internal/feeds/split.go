package feeds

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// Media types of JSON in its several wrappings.
const (
	ndjson      = "application/x-ndjson"
	jsonText    = "application/json"
	cloudEvent  = "application/cloudevents+json"
	cloudEvents = "application/cloudevents-batch+json"
)

// split takes a body apart: NDJSON into its lines, empty ones left out, JSON
// into the elements of an array, or its one value. Only in NDJSON can an item
// be broken without the rest.
func split(mediaType string, body []byte) ([][]byte, error) {
	body = bytes.TrimPrefix(body, []byte("\xef\xbb\xbf"))
	if mediaType == ndjson {
		var items [][]byte
		for line := range bytes.Lines(body) {
			if line = bytes.TrimSpace(line); len(line) > 0 {
				items = append(items, line)
			}
		}
		return items, nil
	}
	dec := jsontext.NewDecoder(bytes.NewBuffer(body), jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))
	items, err := values(dec)
	if err == nil {
		if _, err = dec.ReadToken(); errors.Is(err, io.EOF) {
			return items, nil
		}
		if err == nil {
			return nil, fieldErrorf("", "there is more after the JSON value: send one a line as %s", ndjson)
		}
	}
	if errors.Is(err, io.EOF) && len(bytes.TrimSpace(body)) == 0 {
		return nil, nil
	}
	return nil, fieldErrorf("", "not readable: %s", why(err))
}

// why says what is wrong with a JSON text. The library's own words change from
// build to build, on purpose, where they are about Go's types.
func why(err error) string {
	var syntax *jsontext.SyntacticError
	var kind *json.SemanticError
	switch {
	case errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, io.EOF):
		return "the JSON ends too early"
	case errors.As(err, &syntax):
		return fmt.Sprintf("no JSON from byte %d on: %v", syntax.ByteOffset, syntax.Err)
	case errors.As(err, &kind) && kind.JSONPointer != "":
		return fmt.Sprintf("%s is of the wrong kind", strings.TrimPrefix(string(kind.JSONPointer), "/"))
	}
	return "it is of the wrong kind"
}

// values reads one value, or the elements of one array.
func values(dec *jsontext.Decoder) (items [][]byte, err error) {
	if dec.PeekKind() != '[' {
		value, err := dec.ReadValue()
		if err != nil {
			return nil, err
		}
		return [][]byte{bytes.Clone(value)}, nil
	}
	if _, err := dec.ReadToken(); err != nil {
		return nil, err
	}
	for dec.PeekKind() != ']' {
		value, err := dec.ReadValue()
		if err != nil {
			return nil, err
		}
		items = append(items, bytes.Clone(value))
	}
	_, err = dec.ReadToken()
	return items, err
}
