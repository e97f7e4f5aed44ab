// Package keys says who may write events for which accounts. Keys are long
// random strings; the file holds their SHA-256 only, so that reading it gives
// nobody a key. (A slow hash is for passwords: a random key of 128 bits or more
// cannot be guessed.)
package keys

import (
	"bufio"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"

	"github.com/tocsin/tocsin/services/internal/codec"
)

// scope is the accounts that a key may write for.
type scope struct {
	all      bool
	accounts map[string]bool
}

func (s scope) may(account string) bool { return s.all || s.accounts[account] }

// Keys are the keys of a file; nil asks for none and lets all write.
type Keys struct {
	byHash map[[sha256.Size]byte]scope
}

// ErrNoKey is the error of a request without a key that is known.
var ErrNoKey = errors.New("an API key is needed: send it as Authorization: Bearer …")

// Open reads a file of keys, one a line: the SHA-256 of the key as 64 hex
// digits, its accounts with commas between them or * for all, and a remark.
// Empty lines and those that begin with # are skipped.
func Open(path string) (*Keys, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("open the API keys: %w", err)
	}
	defer func() { _ = f.Close() }() // only read
	k, err := read(f)
	if err != nil {
		return nil, fmt.Errorf("read the API keys of %s: %w", path, err)
	}
	return k, nil
}

func read(r io.Reader) (*Keys, error) {
	k := &Keys{byHash: map[[sha256.Size]byte]scope{}}
	in := bufio.NewScanner(r)
	for n := 1; in.Scan(); n++ {
		fields := strings.Fields(in.Text())
		if len(fields) == 0 || strings.HasPrefix(fields[0], "#") {
			continue
		}
		if len(fields) < 2 {
			return nil, fmt.Errorf("line %d: want the key's SHA-256 and its accounts, or * for all", n)
		}
		sum, err := hex.DecodeString(fields[0])
		if err != nil || len(sum) != sha256.Size {
			// Not shown: it may be a key that was put there by mistake.
			return nil, fmt.Errorf("line %d: the first word is no SHA-256 in hex digits: printf %%s KEY | sha256sum makes one", n)
		}
		s := scope{all: fields[1] == "*", accounts: map[string]bool{}}
		if !s.all {
			for account := range strings.SplitSeq(fields[1], ",") {
				if !codec.ValidID(account) {
					return nil, fmt.Errorf("line %d: %q is no account id", n, account)
				}
				s.accounts[account] = true
			}
		}
		if _, twice := k.byHash[[sha256.Size]byte(sum)]; twice {
			return nil, fmt.Errorf("line %d: this key was there before", n)
		}
		k.byHash[[sha256.Size]byte(sum)] = s
	}
	if err := in.Err(); err != nil {
		return nil, err
	}
	if len(k.byHash) == 0 {
		return nil, errors.New("there is no key in it")
	}
	return k, nil
}

// Scope says for which accounts a request may write: its key is in the header
// Authorization. The error is ErrNoKey.
func (k *Keys) Scope(r *http.Request) (may func(account string) bool, err error) {
	if k == nil {
		return scope{all: true}.may, nil
	}
	scheme, key, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if !strings.EqualFold(scheme, "Bearer") {
		return nil, ErrNoKey
	}
	s, ok := k.byHash[sha256.Sum256([]byte(strings.TrimSpace(key)))]
	if !ok {
		return nil, ErrNoKey
	}
	return s.may, nil
}
