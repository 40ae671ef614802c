package hub

import "strconv"

// replies are answers to commands, of one version of the protocol.
type replies struct {
	out   []byte
	resp3 bool
}

func (r *replies) head(kind byte, n int) {
	r.out = append(r.out, kind)
	r.out = strconv.AppendInt(r.out, int64(n), 10)
	r.out = append(r.out, "\r\n"...)
}

func (r *replies) integer(n int) { r.head(':', n) }
func (r *replies) array(n int)   { r.head('*', n) }

// kinds of version 3 are arrays in version 2.
func (r *replies) only3(kind byte, n, n2 int) {
	if r.resp3 {
		r.head(kind, n)
	} else {
		r.head('*', n2)
	}
}

func (r *replies) dict(n int) { r.only3('%', n, 2*n) }
func (r *replies) set(n int)  { r.only3('~', n, n) }
func (r *replies) push(n int) { r.only3('>', n, n) }

func (r *replies) bulk(s string)      { r.out = appendBulk(r.out, s) }
func (r *replies) bulkBytes(p []byte) { r.out = appendBulk(r.out, p) }

// status is a text without line ends.
func (r *replies) status(s string) {
	r.out = append(r.out, '+')
	r.out = append(r.out, s...)
	r.out = append(r.out, "\r\n"...)
}

func (r *replies) ok() { r.status("OK") }

func (r *replies) null() {
	if r.resp3 {
		r.out = append(r.out, "_\r\n"...)
	} else {
		r.out = append(r.out, "$-1\r\n"...)
	}
}

// text is for people.
func (r *replies) text(s string) {
	if !r.resp3 {
		r.bulk(s)
		return
	}
	r.head('=', len(s)+len("txt:"))
	r.out = append(r.out, "txt:"...)
	r.out = append(r.out, s...)
	r.out = append(r.out, "\r\n"...)
}

// error is an error that begins with its code. Line ends in it, of what the client has sent,
// are left out.
func (r *replies) error(text string) {
	r.out = append(r.out, '-')
	for i := range len(text) {
		if c := text[i]; c == '\r' || c == '\n' {
			r.out = append(r.out, ' ')
		} else {
			r.out = append(r.out, c)
		}
	}
	r.out = append(r.out, "\r\n"...)
}

// help is how to use a command with subcommands.
func (r *replies) help(lines ...string) {
	r.array(len(lines))
	for _, l := range lines {
		r.status(l)
	}
}

// maxShown is the most bytes of what a client has sent that an error repeats.
const maxShown = 128

func shown(p []byte) string { return string(p[:min(len(p), maxShown)]) }
