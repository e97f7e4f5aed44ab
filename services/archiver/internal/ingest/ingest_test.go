package ingest

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
)

// fakeIntake takes whatever comes.
type fakeIntake struct{}

func (fakeIntake) Feeds() []string                               { return []string{"x"} }
func (fakeIntake) MediaTypes(string) []string                    { return []string{"application/json"} }
func (fakeIntake) Take(context.Context, Request) (Answer, error) { return Answer{Accepted: 1}, nil }

// Proves on a real connection that a caller who sends all of a body that is
// too large, before it reads, reads our answer and not a reset.
func TestTooLargeIsReadToTheEnd(t *testing.T) {
	everyone := func(*http.Request) (func(string) bool, error) { return func(string) bool { return true }, nil }
	server := httptest.NewServer(New(Config{MaxBodyBytes: 1 << 20, MaxRequests: 1}, everyone, fakeIntake{}))
	defer server.Close()
	conn, err := net.Dial("tcp", server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	const size = 40 << 20
	if _, err := fmt.Fprintf(conn, "POST /v1/events HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n", size); err != nil {
		t.Fatal(err)
	}
	chunk := make([]byte, 1<<20)
	for sent := 0; sent < size; sent += len(chunk) {
		if _, err := conn.Write(chunk); err != nil {
			t.Fatalf("after %d bytes: %v", sent, err)
		}
	}
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusRequestEntityTooLarge {
		t.Errorf("got %s", resp.Status)
	}
}
