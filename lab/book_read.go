package lab

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// maxBook bounds the JSON of a book, in bytes.
const maxBook = 512 << 20

// ReadBook reads what Book.WriteJSON has written, of at most 512 MiB.
func ReadBook(in io.Reader) (*Book, error) { return readBookUpTo(in, maxBook) }

func readBookUpTo(in io.Reader, most int64) (*Book, error) {
	counting := &countingReader{in: io.LimitReader(in, most+1)}
	decoder := json.NewDecoder(counting)
	var b Book
	err := decoder.Decode(&b)
	if counting.read > most {
		return nil, fmt.Errorf("more than %d bytes; expected the report.json of a bench", most)
	}
	if err != nil {
		return nil, fmt.Errorf("%w; expected the report.json of a bench", err)
	}
	if b.Format != BookFormat {
		return nil, fmt.Errorf("format %.40q; expected %q: a report.json of this version's bench", b.Format, BookFormat)
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("something follows the report; expected one report in a file")
	}
	for _, r := range b.Reports {
		if r == nil {
			return nil, errors.New("a report is null; expected the report.json of a bench")
		}
	}
	return &b, nil
}

// countingReader counts what is read.
type countingReader struct {
	in   io.Reader
	read int64
}

func (c *countingReader) Read(b []byte) (int, error) {
	n, err := c.in.Read(b)
	c.read += int64(n)
	return n, err
}

// IsBook says whether a file whose beginning this is says that it is a Book: one JSON
// object with a format, whatever its version. The first 4 KiB are enough.
func IsBook(beginning []byte) bool {
	decoder := json.NewDecoder(bytes.NewReader(beginning))
	if open, err := decoder.Token(); err != nil || open != json.Delim('{') {
		return false
	}
	for decoder.More() {
		key, err := decoder.Token()
		if err != nil {
			return false
		}
		if key == "format" {
			return true
		}
		var value json.RawMessage
		if decoder.Decode(&value) != nil {
			return false
		}
	}
	return false
}
