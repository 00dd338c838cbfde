// Adds jobs to a BullMQ queue, works them off with handlers that do nothing, and
// prints how long that took. Its only argument is JSON:
// {port, jobs, concurrency, max, duration}; without max there is no limit.
"use strict";

const { Queue, Worker } = require("bullmq");

async function main() {
  const { port, jobs, concurrency, max, duration } = JSON.parse(process.argv[2]);
  const connection = { host: "127.0.0.1", port };
  const queue = new Queue("bench", { connection });
  for (let i = 0; i < jobs; i += 1000) {
    const some = Array.from({ length: Math.min(1000, jobs - i) }, (_, j) => ({
      name: "sms",
      data: { to: "+8613900000000", n: i + j },
      opts: { removeOnComplete: true }, // as asynq does
    }));
    await queue.addBulk(some);
  }
  let started = 0;
  let first = 0;
  const options = { connection, concurrency };
  if (max) options.limiter = { max, duration };
  const began = performance.now();
  const last = await new Promise((resolve, reject) => {
    const work = async () => {
      started++;
      if (started === 1) first = performance.now();
      if (started === jobs) resolve(performance.now());
    };
    const worker = new Worker("bench", work, options);
    worker.on("error", reject);
    worker.on("failed", (_, err) => reject(err));
  });
  console.log(JSON.stringify({ fromStart: last - began, fromFirst: last - first }));
  process.exit(0);
}

main().catch((err) => {
  console.error(err);
  process.exit(1);
});
