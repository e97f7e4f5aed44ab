package feeds

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	eventv1 "github.com/tocsin/tocsin/proto/gen/tocsin/event/v1"
	"github.com/tocsin/tocsin/services/internal/codec"
)

// parseEvents reads our own event form, plain or as the data of CloudEvents.
func parseEvents(m Message) ([]Item, error) {
	texts, err := split(m.MediaType, m.Body)
	if err != nil {
		return nil, err
	}
	if len(texts) == 0 {
		return nil, fieldErrorf("", "there is no event in it")
	}
	parse := codec.ParseEvent
	if m.MediaType == cloudEvent || m.MediaType == cloudEvents {
		parse = parseCloudEvent
	}
	items := make([]Item, len(texts))
	for i, text := range texts {
		items[i].Index = i
		if items[i].Event, err = parse(text); err != nil {
			items[i].Err = asField(err)
		}
	}
	return items, nil
}

// envelope is a CloudEvent in structured JSON. Its data is an event in our own
// form; id, subject and time fill in what the data leaves out.
type envelope struct {
	SpecVersion string         `json:"specversion"`
	ID          string         `json:"id"`
	Source      string         `json:"source"`
	Type        string         `json:"type"`
	Subject     string         `json:"subject"`
	Time        string         `json:"time"`
	ContentType string         `json:"datacontenttype"`
	Data        jsontext.Value `json:"data"`
	Data64      string         `json:"data_base64"`
}

func parseCloudEvent(text []byte) (*eventv1.DeviceEvent, error) {
	var ce envelope
	if err := json.Unmarshal(text, &ce); err != nil {
		return nil, fieldErrorf("", "not readable as a CloudEvent: %s", why(err))
	}
	switch {
	case ce.SpecVersion != "1.0":
		return nil, fieldErrorf("specversion", "%q is not known: 1.0 is", shorten(ce.SpecVersion))
	case ce.ID == "":
		return nil, fieldErrorf("id", "is missing")
	case ce.Source == "":
		return nil, fieldErrorf("source", "is missing")
	case ce.Type == "":
		return nil, fieldErrorf("type", "is missing")
	}
	data := []byte(ce.Data)
	if ce.Data64 != "" {
		var err error
		if data, err = base64.StdEncoding.DecodeString(ce.Data64); err != nil {
			return nil, fieldErrorf("data_base64", "is not readable: %v", err)
		}
	}
	if len(data) == 0 {
		return nil, fieldErrorf("data", "is missing: it is an event as POST /v1/events takes it")
	}
	filled, err := ce.fill(data)
	if err != nil {
		return nil, err
	}
	return codec.ParseEvent(filled)
}

// fill adds to the data's members what the envelope says of them. The subject
// is "device" or "account/device".
func (ce *envelope) fill(data []byte) ([]byte, error) {
	var members map[string]jsontext.Value
	if err := json.Unmarshal(data, &members); err != nil || members == nil {
		return nil, fieldErrorf("data", "is no JSON object")
	}
	account, device, both := strings.Cut(ce.Subject, "/")
	if !both {
		account, device = "", ce.Subject
	}
	for _, attribute := range [...]struct{ name, value string }{
		{"accountId", account}, {"deviceId", device}, {"eventId", ce.eventID()}, {"occurTime", ce.Time},
	} {
		if _, there := members[attribute.name]; !there && attribute.value != "" {
			// The only error is about invalid UTF-8, which is replaced nonetheless.
			members[attribute.name], _ = jsontext.AppendQuote(nil, attribute.value)
		}
	}
	return json.Marshal(members, json.Deterministic(true))
}

// eventID is the CloudEvent's id, or a name made of source and id where the id
// has characters that ours may not have.
func (ce *envelope) eventID() string {
	if codec.ValidID(ce.ID) {
		return ce.ID
	}
	sum := sha256.Sum256([]byte(ce.Source + "\x00" + ce.ID))
	return "ce-" + hex.EncodeToString(sum[:16])
}
