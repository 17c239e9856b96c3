// A client of the API, with the types that openapi-typescript makes of its document. It has to
// compile under `strict`: every field that it reads is named there, with its type.
import type { components, operations, paths } from "./api.js";

type Schemas = components["schemas"];
type Answer<Path extends keyof paths, Method extends keyof paths[Path]> = paths[Path][Method] extends {
  responses: { 200: { content: { "application/json": infer Body } } };
}
  ? Body
  : never;

async function get<Path extends keyof paths>(path: Path): Promise<Answer<Path, "get">> {
  const response = await fetch(`http://127.0.0.1:8787${path}`);
  return (await response.json()) as Answer<Path, "get">;
}

export async function newestQuestions(): Promise<string[]> {
  const page = await get("/api/agents/{agent}/traces");
  return page.traces.map((trace) => `${trace.id}: ${trace.input ?? ""} -> ${trace.output ?? ""}`);
}

export async function liveVersions(): Promise<string[]> {
  const deployments = await get("/api/agents/{agent}/deployments");
  const listed = Array.isArray(deployments) ? deployments : deployments.deployments;
  return listed.filter((row) => row.alive).map((row) => `${row.version} on ${row.target}`);
}

export function gain(turn: Schemas["TurnResult"]): number | null {
  return turn.evaluation === null ? null : turn.evaluation.primary.gain;
}

export function storedLines(report: Answer<"/api/agents/{agent}/imports", "post">): number {
  return "stored" in report ? report.stored ?? 0 : 0;
}

export function judged(report: Schemas["JudgeReport"]): [string, number][] {
  return Object.entries(report.components).map(([name, part]) => [name, part.judged]);
}

export function waitsFor(job: Schemas["Job"]): boolean {
  return job.state === "queued" || job.state === "running";
}

export async function steps(trace: Answer<"/api/agents/{agent}/traces/{trace}", "get">): Promise<string[]> {
  return trace.steps.map((step) => `${step.position}: ${step.kind} ${step.served_model ?? ""}`);
}

export function reviewed(status: Answer<"/api/agents/{agent}/labels", "get">): number {
  return status.bands.reduce((count, band) => count + band.reviewed * (band.to - band.from), 0);
}

export function powerOf(started: Answer<"/api/agents/{agent}/experiments", "post">): number | null {
  return started.forecast.units;
}

export function differs(replayed: Answer<"/api/agents/{agent}/experiments/{id}/replay", "get">): boolean {
  return replayed.some((verdict) => verdict.was !== verdict.is);
}

export function decided(report: Answer<"/api/agents/{agent}/versions/{version}", "get">): string {
  return report.summary?.decision ?? "no decision";
}

export type Evaluation = operations["evaluate"]["responses"][200]["content"]["application/json"];

// @ts-expect-error a job has no such field
export const missing = (job: Schemas["Job"]): unknown => job.no_such_field;
// @ts-expect-error the answer of an import names its counts
export const wrong = (report: Schemas["ImportReport"]): number => report.lines;
