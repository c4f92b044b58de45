// An end of a link in Node, made from the .proto files: `node link_node.cjs send ADDRESS` sends the frames that come on
// standard input, a JSON list, with the metadata before them; `node link_node.cjs receive` serves and prints what comes.
// Payloads are base64.
"use strict";
const grpc = require("@grpc/grpc-js");
const loader = require("@grpc/proto-loader");
const fs = require("fs");
const path = require("path");

const protos = path.join(__dirname, "..", "..", "protos");
const definition = loader.loadSync("pipesvc/rpc/v1/data.proto", {
  includeDirs: [protos], keepCase: true, longs: String, enums: String, defaults: true, oneofs: true,
});
const { LinkService } = grpc.loadPackageDefinition(definition).pipesvc.rpc.v1;
const say = (value) => process.stdout.write(JSON.stringify(value) + "\n");

function send(address) {
  const { metadata, frames } = JSON.parse(fs.readFileSync(0, "utf8"));
  const sent = new grpc.Metadata();
  for (const [key, value] of metadata) sent.set(key, value);
  const client = new LinkService(address, grpc.credentials.createInsecure());
  const call = client.Carry(sent);
  let hasBegun = false;
  call.on("data", (reply) => {
    say(reply);
    if (!hasBegun) {
      hasBegun = true;
      for (const frame of frames) call.write({ ...frame, payload: Buffer.from(frame.payload, "base64") });
    }
    if (reply.acknowledged_sequence === frames[frames.length - 1].sequence) call.end();
  });
  call.on("error", (error) => { say({ error: error.code }); });
  call.on("status", () => client.close());
}

function receive() {
  const server = new grpc.Server();
  server.addService(LinkService.service, {
    Carry(call) {
      say({ metadata: call.metadata.getMap() });
      call.write({ credit_parcels: "10" });
      call.on("data", (frame) => {
        say({ ...frame, payload: frame.payload.toString("base64") });
        call.write({ acknowledged_sequence: frame.sequence, credit_parcels: "10" });
      });
      call.on("error", () => {});
      call.on("end", () => call.end());
    },
  });
  server.bindAsync("127.0.0.1:0", grpc.ServerCredentials.createInsecure(), (error, port) => say({ port }));
  process.stdin.resume();
  process.stdin.on("end", () => process.exit(0));
}

process.argv[2] === "send" ? send(process.argv[3]) : receive();
