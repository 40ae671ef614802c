package hub

import "strconv"

// replyWriter encodes replies in RESP2 or RESP3.
type replyWriter struct {
	buf   []byte
	resp3 bool
}

func (r *replyWriter) writeHeader(typeByte byte, n int) {
	r.buf = append(r.buf, typeByte)
	r.buf = strconv.AppendInt(r.buf, int64(n), 10)
	r.buf = append(r.buf, "\r\n"...)
}

func (r *replyWriter) writeInt(n int)         { r.writeHeader(':', n) }
func (r *replyWriter) writeArrayHeader(n int) { r.writeHeader('*', n) }

// writeRESP3Header writes the header of a RESP3 type with n elements. In RESP2, it writes the header of an array with
// resp2Count elements instead.
func (r *replyWriter) writeRESP3Header(typeByte byte, n, resp2Count int) {
	if r.resp3 {
		r.writeHeader(typeByte, n)
	} else {
		r.writeHeader('*', resp2Count)
	}
}

func (r *replyWriter) writeMapHeader(n int)  { r.writeRESP3Header('%', n, 2*n) }
func (r *replyWriter) writeSetHeader(n int)  { r.writeRESP3Header('~', n, n) }
func (r *replyWriter) writePushHeader(n int) { r.writeRESP3Header('>', n, n) }

func (r *replyWriter) writeBulk(s string)      { r.buf = appendBulk(r.buf, s) }
func (r *replyWriter) writeBulkBytes(p []byte) { r.buf = appendBulk(r.buf, p) }

func (r *replyWriter) writeStatus(s string) {
	r.buf = append(r.buf, '+')
	r.buf = append(r.buf, s...)
	r.buf = append(r.buf, "\r\n"...)
}

func (r *replyWriter) writeOK() { r.writeStatus("OK") }

func (r *replyWriter) writeNull() {
	if r.resp3 {
		r.buf = append(r.buf, "_\r\n"...)
	} else {
		r.buf = append(r.buf, "$-1\r\n"...)
	}
}

// writeVerbatim writes text for humans. The text is a verbatim string in RESP3 and a bulk string in RESP2.
func (r *replyWriter) writeVerbatim(s string) {
	if !r.resp3 {
		r.writeBulk(s)
		return
	}
	r.writeHeader('=', len(s)+len("txt:"))
	r.buf = append(r.buf, "txt:"...)
	r.buf = append(r.buf, s...)
	r.buf = append(r.buf, "\r\n"...)
}

// writeError writes an error reply. text must begin with the error code. Line breaks in it become spaces.
func (r *replyWriter) writeError(text string) {
	r.buf = append(r.buf, '-')
	for i := range len(text) {
		if c := text[i]; c == '\r' || c == '\n' {
			r.buf = append(r.buf, ' ')
		} else {
			r.buf = append(r.buf, c)
		}
	}
	r.buf = append(r.buf, "\r\n"...)
}

func (r *replyWriter) writeHelp(lines ...string) {
	r.writeArrayHeader(len(lines))
	for _, l := range lines {
		r.writeStatus(l)
	}
}

const maxShownBytes = 128

func truncateForError(p []byte) string { return string(p[:min(len(p), maxShownBytes)]) }
