package keys

import (
	"net/http"
	"strings"
	"testing"
)

// sha256 of "one" and of "two".
const (
	one = "7692c3ad3540bb803c020b3aee66cd8887123234ea0c6e7143c0add73ff431ed"
	two = "3fc4ccfe745870e2c0d99f71f30ff0656c8dedd41cc1d7d3d376b0dbe685e2f3"
)

// Proves that a key opens its accounts and no other, and that a wrong or
// missing one opens none.
func TestScope(t *testing.T) {
	k, err := read(strings.NewReader("# who\n\n" + one + " acme,home the shop\n" + two + " *\n"))
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		header        string
		known         bool
		acme, another bool
	}{
		{"Bearer one", true, true, false},
		{"bearer  one ", true, true, false},
		{"Bearer two", true, true, true},
		{"Bearer three", false, false, false},
		{"Basic one", false, false, false},
		{"one", false, false, false},
		{"", false, false, false},
	} {
		may, err := k.Scope(&http.Request{Header: http.Header{"Authorization": {tc.header}}})
		if (err == nil) != tc.known {
			t.Errorf("%q: got error %v", tc.header, err)
			continue
		}
		if tc.known && (may("acme") != tc.acme || may("other") != tc.another) {
			t.Errorf("%q: may write for acme: %v, for another: %v; want %+v", tc.header, may("acme"), may("other"), tc)
		}
	}
	if may, err := (*Keys)(nil).Scope(&http.Request{}); err != nil || !may("acme") {
		t.Errorf("without keys: %v", err)
	}
}

// Proves that a file with a mistake is refused, naming the line, and without
// showing what may be a key.
func TestReadNamesTheLine(t *testing.T) {
	for text, want := range map[string]string{
		"":                            "no key",
		"# nothing\n":                 "no key",
		one + "\n":                    "line 1",
		one + " acme\nsecretkey acme": "line 2",
		one + " a/b\n":                "line 1",
		one + " acme,\n":              "line 1",
		one + " a\n" + one + " b\n":   "line 2",
	} {
		_, err := read(strings.NewReader(text))
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "secretkey") {
			t.Errorf("%q: got %v, want %q", text, err, want)
		}
	}
}
