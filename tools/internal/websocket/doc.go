// Package websocket implements the client side of the WebSocket protocol, RFC 6455. It does no I/O: it appends output
// to a slice and parses input from one. It suits a million connections, which cannot have a goroutine or a buffer each;
// a FrameReader has 16 bytes.
//
//	out = AppendRequest(out, host, path, header, key)    the handshake's request
//	n, err := CheckHandshakeResponse(in, key)            the server's response
//	out = AppendMaskedFrame(out, OpText, mask, message)  each message is a frame
//	part, n, err := reader.Next(in)                      input from the server
//
// The package returns an error if the server violates RFC 6455, with two exceptions: it does not check UTF-8 in text
// messages and in the reason of a close, and it does not compare a subprotocol in the response with those requested. It
// offers no extension, so messages are never compressed and the reserved bits are always 0.
//
// The package sends nothing by itself: the caller answers a Ping with a Pong of the same payload, and a Close with a
// Close.
//
// All functions are safe for concurrent use; a FrameReader belongs to one goroutine at a time.
package websocket
