package inbox

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// store keeps messages by number. Not safe for use at once: the Inbox's mutex
// is around it.
type store interface {
	put(number uint64, data []byte) error
	get(number uint64) ([]byte, error)
	remove(number uint64) error
}

// memory is the store of an inbox without a directory.
type memory struct{ messages map[uint64][]byte }

func (m *memory) put(n uint64, data []byte) error { m.messages[n] = data; return nil }
func (m *memory) get(n uint64) ([]byte, error)    { return m.messages[n], nil }
func (m *memory) remove(n uint64) error           { delete(m.messages, n); return nil }

// directory has one file a message, named by its number. What ends in
// temporary was never answered with 250 and is swept away when it is opened.
type directory struct{ dir string }

const (
	extension = ".eml"
	temporary = ".tmp"
)

// openDirectory makes dir ready and returns the numbers in it, ascending.
func openDirectory(dir string) (*directory, []uint64, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, nil, err
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, nil, err
	}
	var numbers []uint64
	for _, e := range entries {
		name := e.Name()
		if strings.HasSuffix(name, temporary) {
			if err := os.Remove(filepath.Join(dir, name)); err != nil {
				return nil, nil, fmt.Errorf("sweep away an unfinished message: %w", err)
			}
			continue
		}
		base, ok := strings.CutSuffix(name, extension)
		if n, err := strconv.ParseUint(base, 10, 64); ok && err == nil {
			numbers = append(numbers, n)
		}
	}
	slices.Sort(numbers)
	return &directory{dir: dir}, numbers, nil
}

func (d *directory) path(n uint64) string { return filepath.Join(d.dir, idOf(n)+extension) }

func (d *directory) put(n uint64, data []byte) error {
	path := d.path(n)
	f, err := os.OpenFile(path+temporary, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(path+temporary, path)
	}
	if err != nil {
		return errors.Join(err, removeIfThere(path+temporary))
	}
	return d.sync()
}

// sync makes a rename or removal outlast a power cut.
func (d *directory) sync() error {
	f, err := os.Open(d.dir)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

func (d *directory) get(n uint64) ([]byte, error) { return os.ReadFile(d.path(n)) }

// remove does not sync: a message that comes back after a power cut is removed again.
func (d *directory) remove(n uint64) error { return removeIfThere(d.path(n)) }

func removeIfThere(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// idOf has leading zeros so that ids sort as text; numberOf undoes it.
func idOf(n uint64) string { return fmt.Sprintf("%010d", n) }

func numberOf(id string) uint64 {
	n, err := strconv.ParseUint(id, 10, 64)
	if err != nil {
		panic(fmt.Sprintf("inbox: id %q was not made by idOf", id))
	}
	return n
}
